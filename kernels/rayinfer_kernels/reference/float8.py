"""Rows and weights in eight bits with an exponent of their own, e4m3: three bits behind the point, up to 448."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

DTYPE = torch.float8_e4m3fn
LIMIT = 448.0
SMALLEST = 2.0**-100  # what is smaller everywhere counts as nothing: its scale's inverse would be no float
MULTIPLE = 16  # of the sizes of matrices that a GPU multiplies
MIN_CAPABILITY = (8, 9)  # of GPUs whose tensor cores have such numbers


@dataclass(frozen=True, eq=False)
class Float8Rows:
    """Rows as numbers times scales; zeros fill the rows up to a multiple of 16."""

    numbers: torch.Tensor  # float8_e4m3fn [num_rows, padded width]
    scales: torch.Tensor  # float32 [num_rows]; NaN for a row that holds an infinity or NaN


def quantize_rows(x: torch.Tensor) -> Float8Rows:
    """Scale each row of x [num_rows, width] so that its largest number becomes 448, and round it to eight bits."""
    wide = x.float()
    largest = wide.abs().amax(-1) if x.shape[-1] else wide.new_zeros(len(x))
    is_finite, counts = largest.isfinite(), largest >= SMALLEST
    # Divided in one step: a plain number over a tensor would be its inverse, rounded, times the number.
    inverse = torch.where(is_finite & counts, torch.full_like(largest, LIMIT) / largest, 0.0)
    scaled = torch.where(is_finite[:, None], wide * inverse[:, None], 0.0).clamp(-LIMIT, LIMIT)
    scales = torch.where(counts, largest / LIMIT, 0.0)
    padding = (0, -x.shape[-1] % MULTIPLE)
    return Float8Rows(F.pad(scaled, padding).to(DTYPE), torch.where(is_finite, scales, torch.nan))


def multiply(rows: Float8Rows, weight: torch.Tensor, weight_scales: torch.Tensor) -> torch.Tensor:
    """Products of rows with the rows of a weight [out, padded width] that has a scale each: float32 [num_rows, out]."""
    return (rows.numbers.float() @ weight.float().T) * rows.scales[:, None] * weight_scales
