"""A matrix in the order in which the CPU's matrix product reads it."""

import ctypes
import enum
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

PANEL_WIDTH = 32
PANELS_AT_ONCE = 64  # so that little memory is needed beside the weight
WORD_BYTES = 4


class WeightFormat(enum.IntEnum):
    """How a packed weight keeps its numbers; cpu/weight.h has the same list."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2  # rows stay as the model has them
    INT8_DYNAMIC = 3  # the same weights, but rows are quantised too, token by token
    INT4_DYNAMIC = 4  # groups of 32 inputs share a scale


class WeightArgument(ctypes.Structure):
    """A packed weight as the C++ kernels take it (cpu/weight.h)."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("is_gated", ctypes.c_int32),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeight:
    """The weight [out_features, in_features] of a linear layer, cut into panels of 32 outputs each; or several layers'.

    Within a panel the same word of all outputs lies together, a word being one float32, two neighbouring bfloat16 or four
    neighbouring int8. A gated weight is two layers of one input: their panels take turns, and out_features are one's.
    """

    format: WeightFormat
    # [num_panels, words, 32, per_word] behind the dimensions that count layers, if any; int4 has its own order of bytes.
    # Outputs beyond out_features and inputs beyond in_features are zero.
    panels: torch.Tensor
    in_features: int
    out_features: int
    is_gated: bool = False
    scales: torch.Tensor | None = None  # float32 [num_panels x 32], of formats with eight bits
    sums: torch.Tensor | None = None  # int32 [num_panels x 32], each output's sum over its inputs, of the same formats
    argument: WeightArgument = field(init=False)  # valid as long as this object lives

    def __post_init__(self) -> None:
        pointers = (None if each is None else each.data_ptr() for each in (self.panels, self.scales, self.sums))
        sizes = (self.in_features, self.out_features, self.format, self.is_gated)
        object.__setattr__(self, "argument", WeightArgument(*pointers, *sizes))

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
        )

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix: indices [n] -> [n, in_features]; a gated weight's up rows come behind its gate rows."""
        panel, column = indices // PANEL_WIDTH, indices % PANEL_WIDTH
        if self.is_gated:
            is_up = indices >= self.out_features
            within = indices - is_up * self.out_features
            panel, column = 2 * (within // PANEL_WIDTH) + is_up, within % PANEL_WIDTH
        return self.panels[panel, :, column].flatten(1)[:, : self.in_features]


def pack(weight: torch.Tensor, *, is_gated: bool = False) -> PackedWeight:
    """Reorder a weight [..., out_features, in_features] in its own memory where that can be: the weight is lost.

    A gated weight holds the gate's outputs first, then as many of the other layer, which it is multiplied with.
    """
    *layers, num_outputs, in_features = weight.shape
    per_word = WORD_BYTES // weight.element_size()
    storage = _padded(weight.detach().contiguous(), per_word, is_gated)
    words = storage.shape[-1] // per_word
    outputs = storage.view(-1, PANEL_WIDTH, words, per_word)
    panels = storage.view(-1, words, PANEL_WIDTH, per_word)
    for start in range(0, len(panels), PANELS_AT_ONCE):
        part = slice(start, start + PANELS_AT_ONCE)
        panels[part] = outputs[part].transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return PackedWeight(
        format=WeightFormat.FLOAT32 if weight.dtype == torch.float32 else WeightFormat.BFLOAT16,
        panels=panels.view(*layers, -1, *panels.shape[1:]),
        in_features=in_features,
        out_features=num_outputs // 2 if is_gated else num_outputs,
        is_gated=is_gated,
    )


def _padded(weight: torch.Tensor, per_word: int, is_gated: bool) -> torch.Tensor:
    """Fill up rows to whole words and outputs to whole panels; the halves of a gated weight take turns by panels."""
    extra_inputs = -weight.shape[-1] % per_word
    if not is_gated:
        extra_outputs = -weight.shape[-2] % PANEL_WIDTH
        return F.pad(weight, (0, extra_inputs, 0, extra_outputs)) if extra_inputs or extra_outputs else weight
    halves = weight.unflatten(-2, (2, -1))
    halves = F.pad(halves, (0, extra_inputs, 0, -halves.shape[-2] % PANEL_WIDTH))
    return halves.unflatten(-2, (-1, PANEL_WIDTH)).transpose(-4, -3).flatten(-4, -2).contiguous()
