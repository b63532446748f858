"""Checkpoints of compressed-tensors (llm-compressor): pack-, int-, float- and naive-quantized, and mxfp4.

`weight_packed` int32 [out_features, in_features x bits / 32] holds neighboring inputs, each moved up to have no sign;
`weight_zero_point` packs neighboring outputs [out_features x bits / 32, num_groups] likewise; `weight_shape` has the
sizes before rows were filled up. Other formats keep `weight` in int8 or e4m3. `weight_scale` is of whole matrices,
outputs, groups of inputs or blocks. mxfp4 has `weight_packed` uint8 [out_features, in_features / 2], the first in the
lower half, and scales that are an exponent alone, for 32 inputs each.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.compression_groups import CompressionGroup, CompressionGroups
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
        self._groups = CompressionGroups(settings)

    @property
    def description(self) -> str:
        """The format in a few words."""
        return f"compressed-tensors {self._format}, {self._groups}"

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
        is_packed = self._format.endswith("pack-quantized")
        codes = f"{layer}.weight_packed" if is_packed else matrix
        group = self._groups.of(layer, codes)
        is_integer = tensors.dtype(codes) in (torch.int32, torch.int8)
        if group.is_symmetric or not is_integer:
            _check_no_zero_points(tensors, layer, group)
        if self._format == _MXFP4:
            quantized = _read_mxfp4(tensors, layer, num_outputs, num_inputs)
        elif is_packed:
            quantized = _unpack(tensors, layer, num_outputs, num_inputs, group)
        else:
            zeros = f"{layer}.weight_zero_point" if is_integer and not group.is_symmetric else None
            quantized = scaled_by_shape(tensors, matrix, f"{layer}.weight_scale", group.block, zeros)
        return replace(quantized, input_groups=_order(tensors, layer, group, quantized))


def _unpack(
    tensors: TensorSource, layer: str, num_outputs: int, num_inputs: int, group: CompressionGroup
) -> QuantizedMatrix:
    _, num_words = two_axes(tensors, f"{layer}.weight_packed")
    scale = f"{layer}.weight_scale"
    num_scaled, num_groups = two_axes(tensors, scale)
    if -(-num_inputs * group.bits // 32) != num_words:
        raise ModelLoadError(
            f"tensor {layer}.weight_packed has {num_words} words a row for {num_inputs} inputs of {group.bits} bits"
            f" ({group.name})"
        )
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
    return with_zero_points(
        codes,
        tensors.read(scale).float().contiguous(),
        zeros,
        bits=group.bits,
        group_size=num_inputs // num_groups,
    )


def _check_no_zero_points(tensors: TensorSource, layer: str, group: CompressionGroup) -> None:
    """Raise ModelLoadError for zero points that the group does not have; those of some files are the number 0."""
    name = f"{layer}.weight_zero_point"
    if name not in tensors.tensor_names:
        return
    if tensors.dtype(name) == torch.int32 or bool(tensors.read(name).float().any()):
        what = "symmetric" if group.is_symmetric else "of floating point numbers"
        raise ModelLoadError(f"tensor {name} has zero points, but {group.name} of config_groups is {what}")


def _order(tensors: TensorSource, layer: str, group: CompressionGroup, matrix: QuantizedMatrix) -> torch.Tensor | None:
    """Return each input's group where that is not the order of the inputs."""
    name = f"{layer}.weight_g_idx"
    if not group.has_order and name not in tensors.tensor_names:
        return None
    check_tensor(tensors, name, (matrix.codes.shape[1],), (torch.int32, torch.int64))
    order = check_order(name, tensors.read(name).long(), matrix.scales.shape[1], matrix.group_size)
    if order is not None and not group.has_order:
        raise ModelLoadError(f"tensor {name} orders the inputs, but {group.name} of config_groups has no actorder")
    return order


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
