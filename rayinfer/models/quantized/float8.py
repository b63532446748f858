"""FP8 checkpoints: e4m3 with a scale for blocks of 128 x 128 (DeepSeek, Qwen), for each output or for the whole matrix.

`weight` is float8_e4m3fn [out_features, in_features]. With `weight_block_size` the scales are `weight_scale_inv`, by
which codes are multiplied all the same; else they are `weight_scale`. Activations stay as they are.
"""

from collections.abc import Collection

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import QuantizationSettings, TensorSource, layer_of, two_axes
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix
from rayinfer.models.quantized.scaled_weights import scaled_by_shape

_REMEDY = "use a checkpoint whose weights are e4m3 and whose activations are scaled dynamically, or the unquantized one"
FLOAT8_TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


class Float8Reader:
    """Matrices of e4m3."""

    def __init__(self, settings: QuantizationSettings) -> None:
        settings.require("activation_scheme", ("dynamic", None), _REMEDY)
        settings.require("fmt", ("e4m3", "float8_e4m3fn"), _REMEDY, "e4m3")
        block = settings.fields.get("weight_block_size")
        is_block = isinstance(block, list) and len(block) == 2
        if block is not None and not (is_block and all(isinstance(each, int) and each > 0 for each in block)):
            settings.refuse(f"weight_block_size {block!r}", "it must be two whole numbers, outputs and inputs")
        self._block = block

    @property
    def description(self) -> str:
        """The format in a few words."""
        scales = "scales of outputs or matrices" if self._block is None else "blocks of {} x {}".format(*self._block)
        return f"fp8, e4m3, {scales}"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all weights of eight bits."""
        found = {}
        for name in names:
            if name.endswith(".weight") and tensors.dtype(name) in FLOAT8_TYPES:
                parts = {f"{name}_scale_inv", f"{name}_scale"} & frozenset(names)
                found[name] = frozenset({name, *parts})
        return found

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        return two_axes(tensors, matrix)

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        if tensors.dtype(matrix) != torch.float8_e4m3fn:
            raise ModelLoadError(f"tensor {matrix} has dtype {tensors.dtype(matrix)}, expected float8_e4m3fn")
        two_axes(tensors, matrix)
        layer = layer_of(matrix)
        suffix = "weight_scale" if self._block is None else "weight_scale_inv"
        return scaled_by_shape(tensors, matrix, f"{layer}.{suffix}", self._block)
