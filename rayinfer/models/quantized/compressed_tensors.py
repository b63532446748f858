"""Checkpoints of compressed-tensors (llm-compressor): pack-, int-, float- and naive-quantized, and mxfp4.

`weight_packed` int32 [out_features, in_features x bits / 32] holds neighboring inputs, each moved up to have no sign;
`weight_zero_point` packs neighboring outputs [out_features x bits / 32, num_groups] likewise; `weight_shape` has the
sizes before rows were filled up. Other formats keep `weight` in int8 or e4m3. `weight_scale` is of whole matrices,
outputs, groups of inputs or blocks. mxfp4 has `weight_packed` uint8 [out_features, in_features / 2], the first in the
lower half, and scales that are an exponent alone, for 32 inputs each.
"""

from collections.abc import Collection, Mapping
from typing import Any

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
from rayinfer.models.quantized.gptq import check_order
from rayinfer.models.quantized.packed_integers import FLOAT4, powers_of_two, unpack_nibbles, unpack_words
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix, with_zero_points
from rayinfer.models.quantized.scaled_weights import scaled_by_shape

_MXFP4 = "mxfp4-pack-quantized"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", _MXFP4)
_REMEDY = f"known formats: {', '.join(_FORMATS)}; or use the unquantized checkpoint"
_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)
_TENSORS = (
    *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
)
_MXFP4_GROUP = 32


class CompressedTensorsReader:
    """Matrices of 4 or 8 bits, in any of the formats."""

    def __init__(self, settings: QuantizationSettings) -> None:
        fields = settings.fields
        self._format = settings.require("format", _FORMATS, _REMEDY)
        if fields.get("kv_cache_scheme") is not None:
            settings.refuse("kv_cache_scheme", "remove it from config.json, and choose kv_cache_dtype instead")
        sparsity = fields.get("sparsity_config") or {}
        if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
            settings.refuse(f"sparsity_config of the format {sparsity['format']!r}", _REMEDY)
        if fields.get("transform_config"):
            settings.refuse("transform_config", _REMEDY)
        groups = fields.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            settings.refuse(f"config_groups {groups!r}", "it must name the quantized layers")
        self._groups = [_Group(settings, group) for group in groups.values()]

    @property
    def description(self) -> str:
        """The format in a few words."""
        return f"compressed-tensors {self._format}, {' and '.join(dict.fromkeys(map(str, self._groups)))}"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all layers that have a `weight_packed`, or a `weight` of eight bits."""
        found = with_suffix(names, "weight_packed", _TENSORS)
        for name, parts in with_suffix(names, "weight", _TENSORS).items():
            if tensors.dtype(name) in _EIGHT_BITS:
                found[name] = parts
        return found

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        layer = layer_of(matrix)
        if not self._format.endswith("pack-quantized"):
            return two_axes(tensors, matrix)
        num_outputs, num_words = two_axes(tensors, f"{layer}.weight_packed")
        if self._format == _MXFP4:
            return num_outputs, 2 * num_words
        check_tensor(tensors, f"{layer}.weight_shape", (2,), (torch.int64, torch.int32))
        outputs, inputs = tensors.read(f"{layer}.weight_shape").tolist()
        return int(outputs), int(inputs)

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        layer, (num_outputs, num_inputs) = layer_of(matrix), self.shape(tensors, matrix)
        has_zeros = any(not group.is_symmetric for group in self._groups)
        if self._format == _MXFP4:
            return _read_mxfp4(tensors, layer, num_outputs, num_inputs)
        if self._format == "pack-quantized":
            return self._unpack(tensors, layer, num_outputs, num_inputs)
        zeros = f"{layer}.weight_zero_point" if has_zeros and tensors.dtype(matrix) == torch.int8 else None
        blocks = [group.block for group in self._groups if group.block is not None]
        return scaled_by_shape(tensors, matrix, f"{layer}.weight_scale", blocks[0] if blocks else None, zeros)

    def _unpack(self, tensors: TensorSource, layer: str, num_outputs: int, num_inputs: int) -> QuantizedMatrix:
        _, num_words = two_axes(tensors, f"{layer}.weight_packed")
        scale = f"{layer}.weight_scale"
        num_scaled, num_groups = two_axes(tensors, scale)
        group = next((each for each in self._groups if -(-num_inputs * each.bits // 32) == num_words), None)
        if group is None:
            raise ModelLoadError(f"tensor {layer}.weight_packed has {num_words} words a row for {num_inputs} inputs")
        check_tensor(tensors, f"{layer}.weight_packed", (num_outputs, num_words), (torch.int32,))
        if num_scaled != num_outputs or not num_groups or num_inputs % num_groups:
            raise ModelLoadError(f"tensor {scale} has shape {(num_scaled, num_groups)}, for {num_outputs} outputs")
        check_tensor(tensors, scale, (num_outputs, num_groups), SCALES)
        codes = unpack_words(tensors.read(f"{layer}.weight_packed"), group.bits)[:, :num_inputs]
        zeros = torch.full((num_outputs, num_groups), 1 << group.bits - 1)
        if not group.is_symmetric:
            name = f"{layer}.weight_zero_point"
            check_tensor(tensors, name, (-(-num_outputs * group.bits // 32), num_groups), (torch.int32,))
            zeros = unpack_words(tensors.read(name).T, group.bits).T[:num_outputs].contiguous()
        order = None
        if group.has_order:
            check_tensor(tensors, f"{layer}.weight_g_idx", (num_inputs,), (torch.int32, torch.int64))
            name = f"{layer}.weight_g_idx"
            order = check_order(name, tensors.read(name).long(), num_groups, num_inputs // num_groups)
        return with_zero_points(
            codes,
            tensors.read(scale).float().contiguous(),
            zeros,
            bits=group.bits,
            group_size=num_inputs // num_groups,
            input_groups=order,
        )


def _read_mxfp4(tensors: TensorSource, layer: str, num_outputs: int, num_inputs: int) -> QuantizedMatrix:
    check_tensor(tensors, f"{layer}.weight_packed", (num_outputs, num_inputs // 2), (torch.uint8,))
    shape = (num_outputs, -(-num_inputs // _MXFP4_GROUP))
    check_tensor(tensors, f"{layer}.weight_scale", shape, (torch.uint8,))
    return QuantizedMatrix(
        codes=unpack_nibbles(tensors.read(f"{layer}.weight_packed")),
        scales=powers_of_two(tensors.read(f"{layer}.weight_scale")),
        group_size=_MXFP4_GROUP,
        bits=4,
        table=FLOAT4,
    )


class _Group:
    """One of `config_groups`: how the weights of some layers were quantized."""

    def __init__(self, settings: QuantizationSettings, group: Any) -> None:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            settings.refuse("config_groups without weights", "it must say how weights were quantized")
        for kind in ("input_activations", "output_activations"):
            scheme = group.get(kind)
            if isinstance(scheme, Mapping) and scheme.get("dynamic") is not True:
                settings.refuse(f"static {kind}", "use a checkpoint of dynamic or of no quantization of activations")
        bits = weights.get("num_bits")
        if bits not in (4, 8):
            settings.refuse(f"weights of {bits} bits", "4 and 8 are read")
        self.bits: int = bits
        self._strategy = str(weights.get("strategy"))
        if self._strategy not in ("tensor", "channel", "group", "block"):
            settings.refuse(f"the strategy {self._strategy!r}", "tensor, channel, group and block are read")
        self.is_symmetric = bool(weights.get("symmetric", True))
        self.has_order = weights.get("actorder") in ("group", "dynamic", True)
        block = weights.get("block_structure")
        if self._strategy == "block" and not (isinstance(block, list) and len(block) == 2):
            settings.refuse(f"block_structure {block!r}", "it must be two whole numbers, outputs and inputs")
        self.block: list[int] | None = block if self._strategy == "block" else None
        self._kind, self._group_size = str(weights.get("type", "int")), weights.get("group_size")

    def __str__(self) -> str:
        words = {"tensor": "a scale per matrix", "channel": "a scale per output"}
        groups = words.get(self._strategy, f"groups of {self._group_size}")
        if self.block is not None:
            groups = "blocks of {} x {}".format(*self.block)
        return f"{self._kind} of {self.bits} bits, {groups}"
