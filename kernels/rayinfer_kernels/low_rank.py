"""Low-rank terms of linear layers (LoRA, Hu et al. 2021), by slot: what a step adds to rows that have an adapter."""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

OUTPUTS_PER_VECTOR = 16  # of the widest instructions; a term's outputs are padded to whole vectors


class LowRankPart(NamedTuple):
    """A term of some outputs: x A^T B scale; of a gated weight, of outputs of one half."""

    a: torch.Tensor  # [rank, in_features], of the model's type
    b: torch.Tensor  # [rank, end - begin], likewise, padded with zeros
    begin: int  # a multiple of OUTPUTS_PER_VECTOR, as the end is
    scale: float
    is_second_half: bool = False

    @property
    def end(self) -> int:
        """The first output behind it."""
        return self.begin + self.b.shape[1]


def low_rank_part(
    a: torch.Tensor, b: torch.Tensor, first_output: int, scale: float, *, is_second_half: bool = False
) -> LowRankPart:
    """Lay out a term: a [rank, in_features], b [num_outputs, rank], for the outputs from `first_output` on."""
    before = first_output % OUTPUTS_PER_VECTOR
    behind = -(before + len(b)) % OUTPUTS_PER_VECTOR
    return LowRankPart(
        a.contiguous(), F.pad(b.T, (before, behind)).contiguous(), first_output - before, scale, is_second_half
    )


class PartArgument(ctypes.Structure):
    """See gemm/low_rank.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("a", "b")),
        *((name, c_int64) for name in ("rank", "begin", "end")),
        ("scale", c_float),
        ("is_second_half", c_int32),
    )


class AdapterArgument(ctypes.Structure):
    """See gemm/low_rank.h."""

    _fields_ = (("parts", ctypes.POINTER(PartArgument)), ("num_parts", c_int64))


class TokenSlots:
    """Slots of a step's tokens: -1 where a token has no adapter."""

    def __init__(self, slots: np.ndarray, device: torch.device) -> None:
        self._slots, self._device = slots.astype(np.int32), device
        self.by_token = torch.from_numpy(self._slots)  # int32 [num_tokens], in host memory

    @cached_property
    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Each slot with the indices of its tokens on the device, int64."""
        used = np.unique(self._slots[self._slots >= 0]).tolist()
        return [(slot, torch.from_numpy(np.flatnonzero(self._slots == slot)).to(self._device)) for slot in used]


class LowRankTable:
    """Terms of one linear layer, by slot; the kernels read them by pointer, so the tensors are kept here."""

    def __init__(self, num_slots: int) -> None:
        self._parts: list[Sequence[LowRankPart]] = [()] * num_slots
        self._part_arguments: list[object] = [None] * num_slots
        self.argument = (AdapterArgument * num_slots)()
        self.width = 0  # the largest rank of a slot's terms together

    def __getitem__(self, slot: int) -> Sequence[LowRankPart]:
        """Return the terms of a slot; empty where its adapter leaves the layer alone."""
        return self._parts[slot]

    def __setitem__(self, slot: int, parts: Sequence[LowRankPart]) -> None:
        """Replace the terms of a slot, between two steps."""
        arguments = (PartArgument * len(parts))(*map(_argument, parts))
        self._parts[slot], self._part_arguments[slot] = parts, arguments
        self.argument[slot] = AdapterArgument(
            ctypes.cast(arguments, ctypes.POINTER(PartArgument)) if parts else None, len(parts)
        )
        self.width = max(sum(len(part.a) for part in each) for each in self._parts)


class LowRank(NamedTuple):
    """The terms of a layer, and the slots of a step's rows."""

    table: LowRankTable
    tokens: TokenSlots


def add_low_rank_(out: torch.Tensor, x: torch.Tensor, low_rank: LowRank, *, is_gated: bool = False) -> torch.Tensor:
    """Add the terms to out [num_tokens, out_features], in place, for x [num_tokens, in_features]; returns out.

    Of a gated layer the outputs are those of both halves. Sums are float32, rounded once behind them.
    """
    half = out.shape[1] // 2 if is_gated else out.shape[1]
    for slot, rows in low_rank.tokens.groups:
        for part in low_rank.table[slot]:
            first, width = part.begin, min(part.end, half) - part.begin
            if part.is_second_half:
                first += half
            products = x[rows].float() @ part.a.float().T * part.scale
            term = products @ part.b[:, :width].float()
            out[rows, first : first + width] += term.to(out.dtype)
    return out


def _argument(part: LowRankPart) -> PartArgument:
    return PartArgument(
        a=part.a.data_ptr(),
        b=part.b.data_ptr(),
        rank=len(part.a),
        begin=part.begin,
        end=part.end,
        scale=part.scale,
        is_second_half=part.is_second_half,
    )
