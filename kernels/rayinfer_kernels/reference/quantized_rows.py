"""Rows of activations as integers of eight bits with a scale each."""

from dataclasses import dataclass

import torch

LIMIT = 127
SMALLEST = 2.0**-100  # what is smaller everywhere counts as nothing: its scale's inverse would be no float


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows [..., width] as q times scales."""

    q: torch.Tensor  # int8
    scales: torch.Tensor  # float32 [..., 1]; NaN for a row that holds an infinity or NaN


def quantize_rows(x: torch.Tensor) -> QuantizedRows:
    """Round each row to the nearest multiples of its largest size / 127, as cpu/gemm/quantize_row.cpp does."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    is_finite, counts = largest.isfinite(), largest >= SMALLEST
    # Divided in one step: a plain number over a tensor would be its inverse, rounded, times the number.
    inverse = torch.where(is_finite & counts, torch.full_like(largest, LIMIT) / largest, 0.0)
    q = torch.where(is_finite, x * inverse, 0.0).round().to(torch.int8)
    scales = torch.where(counts, largest / LIMIT, 0.0)
    return QuantizedRows(q, torch.where(is_finite, scales, torch.nan))
