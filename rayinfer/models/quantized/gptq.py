"""GPTQ checkpoints (AutoGPTQ, GPTQModel): integers packed along the inputs, with a zero point for each group.

`qweight` int32 [in_features x bits / 32, out_features] holds neighboring inputs of an output in one word, the first in
the lowest bits; `qzeros` int32 [num_groups, out_features x bits / 32] neighboring outputs, each less 1 unless
`checkpoint_format` or `format` is "gptq_v2"; `scales` are [num_groups, out_features], and `g_idx` [in_features] names
each input's group: with `desc_act`, and in some checkpoints without it, in another order than that of the inputs.
"""

from collections.abc import Collection

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import (
    SCALES,
    QuantizationSettings,
    TensorSource,
    check_tensor,
    layer_of,
    two_axes,
    with_suffix,
)
from rayinfer.models.quantized.packed_integers import unpack_words
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix, with_zero_points

_TENSORS = ("qweight", "qzeros", "scales", "g_idx")
_REMEDY = "convert the checkpoint to 4 or 8 bits in the format gptq, or use the unquantized one"


class GptqReader:
    """Matrices of 4 or 8 bits in groups of inputs."""

    def __init__(self, settings: QuantizationSettings) -> None:
        self._bits = settings.require("bits", (4, 8), _REMEDY)
        self._group_size = settings.integer("group_size", -1)
        if self._group_size != -1 and self._group_size <= 0:
            settings.refuse(f"group_size {self._group_size}", _REMEDY)
        layouts = {
            settings.require(name, ("gptq", "gptq_v2"), _REMEDY)
            for name in ("checkpoint_format", "format")
            if settings.fields.get(name) is not None
        }
        if len(layouts) > 1:
            settings.refuse("a checkpoint_format that is not its format", _REMEDY)
        if settings.fields.get("is_marlin_format"):
            settings.refuse("is_marlin_format", _REMEDY)
        if settings.fields.get("dynamic"):
            settings.refuse("settings by layer (dynamic)", _REMEDY)
        self._zero_shift = 0 if "gptq_v2" in layouts else 1
        self._has_order = bool(settings.fields.get("desc_act"))

    @property
    def description(self) -> str:
        """The format in a few words."""
        groups = "a scale per output" if self._group_size == -1 else f"groups of {self._group_size}"
        return f"gptq, {self._bits} bits, {groups}{', desc_act' * self._has_order}"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all layers that have a `qweight`."""
        return with_suffix(names, "qweight", _TENSORS)

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        num_words, num_outputs = two_axes(tensors, f"{layer_of(matrix)}.qweight")
        return num_outputs, num_words * 32 // self._bits

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        layer, (num_outputs, num_inputs) = layer_of(matrix), self.shape(tensors, matrix)
        group_size = num_inputs if self._group_size == -1 else self._group_size
        num_groups, per_word = -(-num_inputs // group_size), 32 // self._bits
        for name, width in (("qzeros", -(-num_outputs // per_word)), ("scales", num_outputs)):
            dtypes = SCALES if name == "scales" else (torch.int32,)
            check_tensor(tensors, f"{layer}.{name}", (num_groups, width), dtypes)
        check_tensor(tensors, f"{layer}.qweight", (num_inputs // per_word, num_outputs), (torch.int32,))
        codes = unpack_words(tensors.read(f"{layer}.qweight").T, self._bits)
        zeros = unpack_words(tensors.read(f"{layer}.qzeros"), self._bits)[:, :num_outputs] + self._zero_shift
        return with_zero_points(
            codes,
            tensors.read(f"{layer}.scales").float().T.contiguous(),
            (zeros & (1 << self._bits) - 1).T.contiguous(),  # what wrapped around when 1 was taken away
            bits=self._bits,
            group_size=group_size,
            input_groups=self._order(tensors, layer, num_inputs, num_groups, group_size),
        )

    def _order(
        self, tensors: TensorSource, layer: str, num_inputs: int, num_groups: int, group_size: int
    ) -> torch.Tensor | None:
        """Return each input's group where that is not the order of the inputs."""
        name = f"{layer}.g_idx"
        if not self._has_order and name not in tensors.tensor_names:
            return None
        check_tensor(tensors, name, (num_inputs,), (torch.int32, torch.int64))
        groups = tensors.read(name).long()
        return check_order(name, groups, num_groups, group_size)


def check_order(name: str, groups: torch.Tensor, num_groups: int, group_size: int) -> torch.Tensor | None:
    """Return the groups of inputs; None where they are those of the inputs' own order. Raises ModelLoadError."""
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < num_groups:
        found = f"{groups.min()} to {groups.max()}"
        raise ModelLoadError(f"tensor {name} names groups {found}, expected 0 to {num_groups - 1}")
    return None if torch.equal(groups, torch.arange(len(groups)) // group_size) else groups
