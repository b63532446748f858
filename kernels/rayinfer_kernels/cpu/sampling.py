"""Sampling of rows in C++: everything but what top-k and top-p keep, which torch finds."""

from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch

from rayinfer_kernels.cpu.arguments import vector
from rayinfer_kernels.implementation import RowMasks, SampledRows
from rayinfer_kernels.reference.inverse_cdf import first_exceeding
from rayinfer_kernels.reference.sampling import kept_weights

_MASKS = (c_void_p, c_void_p, c_int64)
SAMPLING_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "mask_rows": (c_void_p, c_int64, *_MASKS, c_int64, c_int64, c_int),
    "sample_rows": (c_void_p, c_int64, *_MASKS, *[c_void_p] * 6, c_int64, c_int64, c_int),
}


class SamplingSettings(NamedTuple):
    """Settings of each row, as `ops.sample_rows` has them."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor
    is_greedy: torch.Tensor


class CpuSampling:
    """The functions of the library that mask and sample rows, for one type of logits; arguments are checked."""

    def __init__(self, sample_rows: Callable[..., None], mask_rows: Callable[..., None]) -> None:
        self._sample_rows = sample_rows
        self._mask_rows = mask_rows

    def mask_(self, rows: torch.Tensor, masks: RowMasks) -> None:
        """See `ops.mask_rows_`."""
        self._mask_rows(
            *(rows.data_ptr(), rows.stride(0), masks.lines.data_ptr(), masks.bits.data_ptr(), masks.bits.stride(0)),
            *(len(masks.lines), rows.shape[1], torch.get_num_threads()),
        )

    def __call__(self, logits: torch.Tensor, settings: SamplingSettings, masks: RowMasks | None) -> SampledRows:
        """See `ops.sample_rows`."""
        num_rows, width = logits.shape
        is_random = settings.is_greedy.logical_not()
        is_truncated = is_random & ((settings.top_p < 1.0) | (settings.top_k < width))
        is_drawn = is_random & ~is_truncated
        numbers = [
            vector(name, each.double(), num_rows, torch.float64)
            for name, each in (
                *(("temperature", settings.temperature), ("min_p", settings.min_p)),
                ("uniform", settings.uniform),
            )
        ]
        mask_of = None if masks is None else _mask_of_rows(masks, num_rows)
        values, token_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        if mask_of is None or masks is None:
            bits: tuple[int | None, int | None, int] = (None, None, 0)
        else:
            bits = (mask_of.data_ptr(), masks.bits.data_ptr(), masks.bits.stride(0))
        self._sample_rows(
            *(logits.data_ptr(), logits.stride(0), *bits, is_drawn.data_ptr()),
            *(each.data_ptr() for each in (*numbers, values, token_ids)),
            *(num_rows, width, torch.get_num_threads()),
        )
        if is_truncated.any():
            rows = is_truncated.nonzero().squeeze(1)
            token_ids[rows] = self._drawn_from_the_likeliest(logits, rows, settings, values, mask_of, masks)
        is_invalid = (values - values).ne(0.0)  # what is not finite; isfinite would be four operations
        return SampledRows(token_ids.masked_fill_(is_invalid, 0), is_invalid)

    def _drawn_from_the_likeliest(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        settings: SamplingSettings,
        best: torch.Tensor,
        mask_of: torch.Tensor | None,
        masks: RowMasks | None,
    ) -> torch.Tensor:
        """Draw tokens of the rows that top-k or top-p truncates."""
        scores = logits.index_select(0, rows).float()
        if mask_of is not None and masks is not None:
            lines = (mask_of[rows] >= 0).nonzero().squeeze(1)
            self.mask_(scores, RowMasks(lines, masks.bits[mask_of[rows[lines]]]))
        truncation = (settings.temperature, settings.top_k, settings.top_p, settings.min_p)
        weights = kept_weights(scores, best[rows], *(each[rows] for each in truncation))
        return first_exceeding(weights, settings.uniform[rows].double())


def _mask_of_rows(masks: RowMasks, num_rows: int) -> torch.Tensor:
    """Return each row's index in the masks, or -1."""
    mask_of = torch.full((num_rows,), -1)
    mask_of[masks.lines] = torch.arange(len(masks.lines))
    return mask_of
