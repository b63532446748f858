"""Sampling of rows in C++."""

from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch

from rayinfer_kernels.cpu.arguments import vector
from rayinfer_kernels.implementation import RowMasks, SampledRows


class _SettingsArgument(Structure):
    """Settings of each row, in arrays (`RowSettings` of sample_rows.cpp)."""

    _fields_ = tuple((name, c_void_p) for name in ("is_drawn", "temperature", "top_p", "min_p", "uniform", "top_k"))


_MASKS = (c_void_p, c_void_p, c_int64)
SAMPLING_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "uniform": (c_void_p, c_void_p, c_void_p, c_void_p, c_int64),
    "mask_rows": (c_void_p, c_int64, *_MASKS, c_int64, c_int64, c_int),
    "sample_rows": (
        c_void_p,
        c_int64,
        *_MASKS,
        POINTER(_SettingsArgument),
        c_void_p,
        c_void_p,
        c_int64,
        c_int64,
        c_int,
    ),
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

    def __init__(
        self, sample_rows: Callable[..., None], mask_rows: Callable[..., None], uniform: Callable[..., None]
    ) -> None:
        self._sample_rows = sample_rows
        self._mask_rows = mask_rows
        self._uniform = uniform

    def uniform(self, seeds: torch.Tensor, positions: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """See `ops.uniform`; torch's operations on so little, ninety of them, would take half a millisecond."""
        numbers = torch.empty(len(seeds), dtype=torch.float64)
        named = {"seeds": seeds, "positions": positions, "choices": choices}
        columns = [vector(name, each, len(seeds), torch.int64) for name, each in named.items()]
        self._uniform(*(each.data_ptr() for each in columns), numbers.data_ptr(), len(seeds))
        return numbers

    def mask_(self, rows: torch.Tensor, masks: RowMasks) -> None:
        """See `ops.mask_rows_`."""
        self._mask_rows(
            *(rows.data_ptr(), rows.stride(0), masks.lines.data_ptr(), masks.bits.data_ptr(), masks.bits.stride(0)),
            *(len(masks.lines), rows.shape[1], torch.get_num_threads()),
        )

    def __call__(self, logits: torch.Tensor, settings: SamplingSettings, masks: RowMasks | None) -> SampledRows:
        """See `ops.sample_rows`."""
        num_rows, width = logits.shape
        columns = _settings_columns(settings, num_rows)
        mask_of = None if masks is None else _mask_of_rows(masks, num_rows)
        values, token_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
        if mask_of is None or masks is None:
            bits: tuple[int | None, int | None, int] = (None, None, 0)
        else:
            bits = (mask_of.data_ptr(), masks.bits.data_ptr(), masks.bits.stride(0))
        self._sample_rows(
            *(logits.data_ptr(), logits.stride(0), *bits),
            byref(_SettingsArgument(*(each.data_ptr() for each in columns))),
            *(values.data_ptr(), token_ids.data_ptr(), num_rows, width, torch.get_num_threads()),
        )
        is_invalid = (values - values).ne(0.0)  # what is not finite; isfinite would be four operations
        return SampledRows(token_ids.masked_fill_(is_invalid, 0), is_invalid)


def _settings_columns(settings: SamplingSettings, num_rows: int) -> list[torch.Tensor]:
    """Return the columns of `_SettingsArgument`, checked."""
    is_random, top_k = settings.is_greedy.logical_not(), settings.top_k.long()
    columns = [vector("is_greedy", is_random, num_rows, torch.bool)]
    for name in ("temperature", "top_p", "min_p", "uniform"):
        columns.append(vector(name, getattr(settings, name).double(), num_rows, torch.float64))
    return [*columns, vector("top_k", top_k, num_rows, torch.int64)]


def _mask_of_rows(masks: RowMasks, num_rows: int) -> torch.Tensor:
    """Return each row's index in the masks, or -1."""
    mask_of = torch.full((num_rows,), -1)
    mask_of[masks.lines] = torch.arange(len(masks.lines))
    return mask_of
