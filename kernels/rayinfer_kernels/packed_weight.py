"""A matrix in the layout of the CPU's GEMM kernels."""

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F

from rayinfer_kernels.int4_blocks import GROUP_SIZE, gather_numbers, gather_scales, split_panels

PANEL_WIDTH = 32
PANELS_AT_ONCE = 64  # so that little memory is needed beside the weight
WORD_BYTES = 4
FEW_PREFETCH_ROWS = 4  # the same as cpu/gemm/weight.h's
LAYOUT_VERSION = 2  # packed weights are kept on the disk: raise it when what they consist of changes its meaning


class WeightFormat(enum.IntEnum):
    """Number format of a packed weight; cpu/gemm/weight.h has the same list."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2  # rows stay as the model has them
    INT8_DYNAMIC = 3  # the same weights, but rows are quantized too, token by token
    INT4_DYNAMIC = 4  # groups of 32 inputs share a scale
    FLOAT8_DYNAMIC = 5  # of GPUs: e4m3, not in panels, and rows are rounded to the same
    # Codes of published checkpoints in groups of any size, with scales of float32 (group_blocks.py); rows stay.
    INT4_GROUPS = 6
    INT8_GROUPS = 7
    FLOAT8_GROUPS = 8  # e4m3
    TABLE4_GROUPS = 9  # of four bits that stand for the numbers of a table, such as NF4's

    @property
    def is_quantized(self) -> bool:
        """Whether its numbers have few bits and scales."""
        return self >= WeightFormat.INT8

    @property
    def is_dynamic(self) -> bool:
        """Whether rows are quantized, too, before they are multiplied."""
        return WeightFormat.INT8_DYNAMIC <= self <= WeightFormat.FLOAT8_DYNAMIC

    @property
    def has_groups(self) -> bool:
        """Whether groups of any size have scales of float32."""
        return self >= WeightFormat.INT4_GROUPS

    @property
    def has_four_bits(self) -> bool:
        """Whether two numbers share a byte."""
        return self in (WeightFormat.INT4_DYNAMIC, WeightFormat.INT4_GROUPS, WeightFormat.TABLE4_GROUPS)


class PrefetchDistances(NamedTuple):
    """Prefetch distances in bytes, with up to FEW_PREFETCH_ROWS rows and with more; 0: the default."""

    few_rows: int = 0
    more_rows: int = 0


class WeightArgument(ctypes.Structure):
    """A packed weight, as the C++ kernels read it (cpu/gemm/weight.h)."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("is_gated", ctypes.c_int32),
        ("has_offsets", ctypes.c_int32),
        ("group_size", ctypes.c_int32),
        ("table", ctypes.c_void_p),
        ("prefetch_few_rows", ctypes.c_int32),
        ("prefetch_more_rows", ctypes.c_int32),
    )


@dataclass(frozen=True, eq=False)
class GroupOffsets:
    """Scales and offsets of groups of inputs, as whole numbers with units of their outputs."""

    scale_q: torch.Tensor  # uint8 [..., out_features, num_groups]
    q: torch.Tensor  # int8, of the same shape
    units: torch.Tensor  # float32 [..., out_features] in values of bfloat16: what scales are multiples of
    ratios: torch.Tensor  # the same, of the offsets' unit to that one

    def scales(self) -> torch.Tensor:
        """Scales in float32."""
        return self.scale_q * self.units[..., None]

    def dequantize(self) -> torch.Tensor:
        """Offsets in float32."""
        return self.q * self.ratios[..., None] * self.units[..., None]

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "GroupOffsets":
        """Change all four."""
        return GroupOffsets(change(self.scale_q), change(self.q), change(self.units), change(self.ratios))


@dataclass(kw_only=True, eq=False)
class PackedWeight:
    """The weight [out_features, in_features] of a linear layer, cut into panels of 32 outputs each; or several layers'.

    Within a panel the same word of all outputs lies together, a word being one float32, two neighboring bfloat16 or
    four neighboring int8; numbers of four bits lie in blocks (int4_blocks.py). A gated weight is two layers of one
    input: their panels alternate, and out_features are one's. Numbers of FLOAT8_DYNAMIC, which only GPUs multiply, lie
    as they did in the weight, [out_features, in_features] with both filled up to multiples of 16.
    """

    format: WeightFormat
    # [num_panels, words, 32, per_word], or blocks [num_panels, num_groups, 576] or bytes [num_panels, bytes], behind
    # the dimensions that count layers, if any. Outputs beyond out_features and inputs beyond in_features are zero.
    panels: torch.Tensor
    in_features: int
    out_features: int
    is_gated: bool = False
    scales: torch.Tensor | None = None  # float32 [num_panels x 32], or one per row, of formats with eight bits
    sums: torch.Tensor | None = None  # int32 [num_panels x 32], each output's sum over its inputs, of the same formats
    has_offsets: bool = False  # of four bits or of groups: something is added to the weights of each group of inputs
    group_size: int = 0  # of formats with groups of any size
    table: torch.Tensor | None = None  # float32 [16], of TABLE4_GROUPS
    argument: WeightArgument = field(init=False)  # valid as long as this object lives

    def __post_init__(self) -> None:
        sizes = {"in_features": self.in_features, "out_features": self.out_features}
        self.argument = WeightArgument(**sizes, format=self.format, is_gated=self.is_gated)
        self.argument.has_offsets, self.argument.group_size = self.has_offsets, self.group_size
        self._point()

    def move(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace its tensors by copies elsewhere, made by `moved`; all references to this object see the copies."""
        self.panels = moved(self.panels)
        self.scales = None if self.scales is None else moved(self.scales)
        self.sums = None if self.sums is None else moved(self.sums)
        self.table = None if self.table is None else moved(self.table)
        self._point()

    def _point(self) -> None:
        # In place: a stack of layers points to the argument.
        for name in ("panels", "scales", "sums", "table"):
            tensor = getattr(self, name)
            setattr(self.argument, name, None if tensor is None else tensor.data_ptr())

    @property
    def prefetch(self) -> PrefetchDistances:
        """How far ahead the CPU kernels fetch it from memory; results are the same bits whatever it is."""
        return PrefetchDistances(self.argument.prefetch_few_rows, self.argument.prefetch_more_rows)

    @prefetch.setter
    def prefetch(self, distances: PrefetchDistances) -> None:
        if not all(0 <= distance < 1 << 31 for distance in distances):
            raise ValueError(f"prefetch distances must be in [0, 2^31), got {tuple(distances)}")
        self.argument.prefetch_few_rows, self.argument.prefetch_more_rows = distances

    def layer(self, index: int) -> "PackedWeight":
        """One of several layers."""
        return PackedWeight(
            format=self.format,
            panels=self.panels[index],
            in_features=self.in_features,
            out_features=self.out_features,
            is_gated=self.is_gated,
            scales=None if self.scales is None else self.scales[index],
            sums=None if self.sums is None else self.sums[index],
            has_offsets=self.has_offsets,
            group_size=self.group_size,
            table=self.table,
        )

    def rows(self, indices: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Rows of the matrix: indices [n] -> [n, in_features]; a gated weight's up rows come behind its gate rows.

        Their type is the weight's own or, of a quantized one, `dtype` or float32.
        """
        if not self.format.is_quantized:
            panel, column = self._columns_of(indices)
            return self.panels[panel, :, column].flatten(1)[:, : self.in_features]
        if self.format is WeightFormat.FLOAT8_DYNAMIC:
            assert self.scales is not None
            float8_rows = self.panels[indices, : self.in_features].float() * self.scales[indices, None]
            return float8_rows.to(dtype or torch.float32)
        if self.format.has_groups:
            return self._rows_of_groups(indices).to(dtype or torch.float32)
        numbers, scales = self.quantized_rows(indices)
        if scales.dim() == 1:
            return (numbers * scales[:, None]).to(dtype or torch.float32)
        rows = numbers * self._by_input(scales)
        if (offsets := self.group_offsets(indices)) is not None:
            rows += self._by_input(offsets.dequantize())
        return rows.to(dtype or torch.float32)

    def _rows_of_groups(self, indices: torch.Tensor) -> torch.Tensor:
        panel, column = self._columns_of(indices)
        groups = self.panels.view(len(self.panels), self.in_features // self.group_size, -1)
        scale_bytes = PANEL_WIDTH * 4
        start = scale_bytes * (2 if self.has_offsets else 1)
        codes = groups[..., start:].view(*groups.shape[:2], -1, PANEL_WIDTH)
        taken = codes[panel, :, :, column]  # [n, num_groups, bytes of a group]
        if self.format.has_four_bits:
            taken = torch.stack((taken & 15, taken >> 4), -1).flatten(-2)

        def of_groups(start: int) -> torch.Tensor:
            return groups[..., start : start + scale_bytes].view(torch.float32)[panel, :, column][..., None]

        rows = self._numbers_of_codes(taken) * of_groups(0)
        return (rows + of_groups(scale_bytes) if self.has_offsets else rows).flatten(1)

    def _numbers_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return what codes of one byte each stand for, in float32."""
        match self.format:
            case WeightFormat.TABLE4_GROUPS:
                assert self.table is not None
                return self.table[codes.long()]
            case WeightFormat.INT4_GROUPS:
                return codes.float() - (0 if self.has_offsets else 8)
            case WeightFormat.INT8_GROUPS:
                return codes.view(torch.int8).float()
        return codes.view(torch.float8_e4m3fn).float()

    def quantized_rows(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of a quantized weight's rows, int8 [n, in_features], and scales, float32 [n] or [n, num_groups]."""
        panel, column = self._columns_of(indices)
        if (offsets := self.group_offsets(indices)) is not None:
            numbers = gather_numbers(self._split()[0], panel, column)
            scales = offsets.scales()
        elif self.format is WeightFormat.INT4_DYNAMIC:
            numbers, scales = gather_numbers(self.panels, panel, column), gather_scales(self.panels, panel, column)
        else:
            assert self.scales is not None
            numbers, scales = self.panels[panel, :, column].flatten(1), self.scales[panel * PANEL_WIDTH + column]
        return numbers[:, : self.in_features], scales

    def group_offsets(self, indices: torch.Tensor) -> "GroupOffsets | None":
        """Scales and offsets of these rows' groups, of a weight that has offsets."""
        if not self.has_offsets or self.format.has_groups:
            return None
        panel, column = self._columns_of(indices)
        _, *parts = self._split()
        return GroupOffsets(*(part[panel, column] for part in parts))

    def _split(self) -> tuple[torch.Tensor, ...]:
        return split_panels(self.panels, -(-self.in_features // GROUP_SIZE))

    def _by_input(self, of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(GROUP_SIZE, 1)[:, : self.in_features]

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, both halves' of a gated weight."""
        return self.out_features * (2 if self.is_gated else 1)

    def _columns_of(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Panels and columns of outputs."""
        if not self.is_gated:
            return indices // PANEL_WIDTH, indices % PANEL_WIDTH
        is_up = indices >= self.out_features
        within = indices - is_up * self.out_features
        return 2 * (within // PANEL_WIDTH) + is_up, within % PANEL_WIDTH


def pack(weight: torch.Tensor, is_gated: bool = False) -> PackedWeight:
    """Reorder a weight [..., out_features, in_features] in its own memory where that can be: the weight is lost.

    A gated weight holds the gate's outputs first, then as many of the other layer, which it is multiplied with.
    """
    num_outputs, in_features = weight.shape[-2:]
    return PackedWeight(
        format=WeightFormat.FLOAT32 if weight.dtype == torch.float32 else WeightFormat.BFLOAT16,
        panels=in_panels(weight.detach(), WORD_BYTES // weight.element_size(), is_gated=is_gated),
        in_features=in_features,
        out_features=num_outputs // 2 if is_gated else num_outputs,
        is_gated=is_gated,
    )


def in_panels(weight: torch.Tensor, per_word: int, *, is_gated: bool) -> torch.Tensor:
    """[..., out_features, in_features] -> [..., num_panels, words, 32, per_word], in its own memory if that can be."""
    storage = padded(weight.contiguous(), per_word, is_gated=is_gated)
    words = storage.shape[-1] // per_word
    outputs = storage.view(-1, PANEL_WIDTH, words, per_word)
    panels = storage.view(-1, words, PANEL_WIDTH, per_word)
    for start in range(0, len(panels), PANELS_AT_ONCE):
        part = slice(start, start + PANELS_AT_ONCE)
        panels[part] = outputs[part].transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return panels.view(*weight.shape[:-2], -1, *panels.shape[1:])


def padded(weight: torch.Tensor, per_word: int, *, is_gated: bool) -> torch.Tensor:
    """Fill up rows to whole words and outputs to whole panels; the halves of a gated weight alternate by panels."""
    extra_inputs = -weight.shape[-1] % per_word
    if not is_gated:
        extra_outputs = -weight.shape[-2] % PANEL_WIDTH
        return F.pad(weight, (0, extra_inputs, 0, extra_outputs)) if extra_inputs or extra_outputs else weight
    *layers, num_outputs, num_inputs = weight.shape
    halves = weight.reshape(*layers, 2, num_outputs // 2, num_inputs)
    halves = F.pad(halves, (0, extra_inputs, 0, -halves.shape[-2] % PANEL_WIDTH))
    panels = halves.view(*layers, 2, -1, PANEL_WIDTH, halves.shape[-1])
    return panels.transpose(-4, -3).flatten(-4, -2).contiguous()
