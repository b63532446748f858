"""Low-rank terms of linear layers (LoRA, Hu et al. 2021), by slot: what a step adds to rows that have an adapter."""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

NUMBERS_PER_GROUP = 32  # of A along its inputs; of B a panel's outputs
RANKS_PER_BLOCK = 8
NUMBERS_PER_PART = 7  # of a DeviceTable


class LowRankPart(NamedTuple):
    """A term of some outputs: x A^T B scale; of a gated weight, of outputs of one half.

    On a CPU, A and B are packed as `gemm/low_rank.h` describes; elsewhere they are as `dense_a` and `dense_b` return.
    """

    a: torch.Tensor  # of the model's type, as b is
    b: torch.Tensor
    rank: int
    in_features: int
    begin: int  # a multiple of NUMBERS_PER_GROUP, as the end is
    end: int  # the first output behind it
    scale: float
    is_second_half: bool = False

    @property
    def dense_a(self) -> torch.Tensor:
        """A, [rank, in_features]."""
        if self.a.device.type != "cpu":
            return self.a
        padded = self.in_features + -self.in_features % NUMBERS_PER_GROUP
        blocks = []
        for block in torch.split(self.a, RANKS_PER_BLOCK * padded):
            groups = _separated(block.view(padded // NUMBERS_PER_GROUP, -1, NUMBERS_PER_GROUP))
            blocks.append(groups.transpose(0, 1).reshape(-1, padded))
        return torch.cat(blocks)[:, : self.in_features]

    @property
    def dense_b(self) -> torch.Tensor:
        """B, [rank, end - begin]."""
        if self.b.device.type != "cpu":
            return self.b
        panels = _separated(self.b.view(-1, self.rank, NUMBERS_PER_GROUP))
        return panels.transpose(0, 1).reshape(self.rank, -1)


def low_rank_part(
    a: torch.Tensor, b: torch.Tensor, first_output: int, scale: float, *, is_second_half: bool = False
) -> LowRankPart:
    """Lay out a term: a [rank, in_features], b [num_outputs, rank], for the outputs from `first_output` on."""
    before = first_output % NUMBERS_PER_GROUP
    behind = -(before + len(b)) % NUMBERS_PER_GROUP
    begin, (rank, in_features) = first_output - before, a.shape
    columns = F.pad(b.T, (before, behind))
    end = begin + columns.shape[1]
    if a.device.type == "cpu":
        a, columns = _packed_a(a), _paired(columns.view(rank, -1, NUMBERS_PER_GROUP).transpose(0, 1))
    return LowRankPart(a.contiguous(), columns.contiguous(), rank, in_features, begin, end, scale, is_second_half)


def _packed_a(a: torch.Tensor) -> torch.Tensor:
    groups = F.pad(a, (0, -a.shape[1] % NUMBERS_PER_GROUP)).view(len(a), -1, NUMBERS_PER_GROUP)
    return torch.cat([_paired(block.transpose(0, 1)).reshape(-1) for block in torch.split(groups, RANKS_PER_BLOCK)])


def _paired(groups: torch.Tensor) -> torch.Tensor:
    """Put the bfloat16 numbers of both halves of each group side by side."""
    if groups.dtype != torch.bfloat16:
        return groups
    return groups.view(*groups.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)


def _separated(groups: torch.Tensor) -> torch.Tensor:
    """Undo `_paired`."""
    if groups.dtype != torch.bfloat16:
        return groups
    return groups.view(*groups.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)


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


class SlotTiles(NamedTuple):
    """Tokens that have an adapter, in tiles of which each has tokens of one slot."""

    rows: torch.Tensor  # int32 [tokens that have one], sorted by slot
    spans: torch.Tensor  # int32 [num_tiles, 3]: slot, first place in `rows`, number of rows


class TokenSlots:
    """Slots of a step's tokens: -1 where a token has no adapter."""

    def __init__(self, slots: np.ndarray, device: torch.device) -> None:
        self._slots, self._device = slots.astype(np.int32), device
        self._tiles: SlotTiles | None = None
        self.by_token = torch.from_numpy(self._slots)  # int32 [num_tokens], in host memory

    @cached_property
    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Each slot with the indices of its tokens on the device, int64."""
        used = np.unique(self._slots[self._slots >= 0]).tolist()
        return [(slot, torch.from_numpy(np.flatnonzero(self._slots == slot)).to(self._device)) for slot in used]

    def tiles(self, num_rows: int) -> SlotTiles:
        """Cut the tokens into tiles of at most so many rows, on the device; the same for all layers of a step."""
        if self._tiles is None:
            order = np.argsort(self._slots, kind="stable").astype(np.int32)
            rows = order[np.count_nonzero(self._slots < 0) :]
            slots, firsts, counts = np.unique(self._slots[rows], return_index=True, return_counts=True)
            spans = [
                (slot, first + start, min(num_rows, count - start))
                for slot, first, count in zip(slots.tolist(), firsts.tolist(), counts.tolist(), strict=True)
                for start in range(0, count, num_rows)
            ]
            both = np.concatenate([np.array(spans, np.int32).reshape(-1), rows])
            on_device = torch.from_numpy(both).to(self._device)  # in one copy
            self._tiles = SlotTiles(on_device[3 * len(spans) :], on_device[: 3 * len(spans)].view(-1, 3))
        return self._tiles


class DeviceTable(NamedTuple):
    """Terms of one linear layer as kernels of a GPU read them; a slot's unused parts have rank 0."""

    # int64 [num_slots, max_parts, NUMBERS_PER_PART]: addresses of A and B, rank, begin, end, half, and where the part's
    # products begin among those of its slot.
    numbers: torch.Tensor
    scales: torch.Tensor  # float32 [num_slots, max_parts]
    max_rank: int
    width: int  # the largest rank of a slot's terms together


class LowRankTable:
    """Terms of one linear layer, by slot; the kernels read them by pointer, so the tensors are kept here."""

    def __init__(self, num_slots: int) -> None:
        self._parts: list[Sequence[LowRankPart]] = [()] * num_slots
        self._part_arguments: list[object] = [None] * num_slots
        self.argument = (AdapterArgument * num_slots)()
        self.width = 0  # the largest rank of a slot's terms together
        self._on_device: DeviceTable | None = None

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
        self.width = max(sum(part.rank for part in each) for each in self._parts)
        self._on_device = None

    def on_device(self, device: torch.device) -> DeviceTable:
        """Return the terms for kernels of a GPU; made anew where a slot has changed."""
        if self._on_device is None:
            max_parts = max(1, *map(len, self._parts))
            numbers = np.zeros((len(self._parts), max_parts, NUMBERS_PER_PART), np.int64)
            scales = np.zeros(numbers.shape[:2], np.float32)
            for slot, parts in enumerate(self._parts):
                first = 0
                for index, part in enumerate(parts):
                    addresses = part.a.data_ptr(), part.b.data_ptr()
                    numbers[slot, index] = (*addresses, part.rank, part.begin, part.end, part.is_second_half, first)
                    scales[slot, index] = part.scale
                    first += part.rank
            self._on_device = DeviceTable(
                torch.from_numpy(numbers).to(device),
                torch.from_numpy(scales).to(device),
                max((part.rank for parts in self._parts for part in parts), default=0),
                self.width,
            )
        return self._on_device


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
            products = x[rows].float() @ part.dense_a.float().T * part.scale
            term = products @ part.dense_b[:, :width].float()
            out[rows, first : first + width] += term.to(out.dtype)
    return out


def _argument(part: LowRankPart) -> PartArgument:
    return PartArgument(
        a=part.a.data_ptr(),
        b=part.b.data_ptr(),
        rank=part.rank,
        begin=part.begin,
        end=part.end,
        scale=part.scale,
        is_second_half=part.is_second_half,
    )
