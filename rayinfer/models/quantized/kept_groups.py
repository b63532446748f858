"""Quantized matrices that a decoder keeps as they are: cut, stacked and packed for the kernels, never dequantized."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.matrix import Matrix
from rayinfer.layers.weight_copies import Copy
from rayinfer.models.quantized.quantized_checkpoint import QuantizedCheckpoint
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix
from rayinfer_kernels import ops

LEAST_GROUP = 8  # inputs: scales of smaller groups would take more room than their codes
_MIDDLE = 8  # of codes of four bits


class _Piece(NamedTuple):
    name: str
    copy: Copy


def keep_groups(
    model: torch.nn.Module,
    checkpoint: QuantizedCheckpoint,
    slices: Mapping[str, CheckpointSlice],
    copies: Mapping[str, Sequence[Copy]],
) -> frozenset[str]:
    """Pack every matrix all of whose tensors are quantized in groups alike; return the tensors that are done with."""
    pieces: dict[str, list[_Piece]] = {}
    for name, of_tensor in copies.items():
        pieces.setdefault(slices[name].parameter, []).extend(_Piece(name, copy) for copy in of_tensor)
    done: set[str] = set()
    for parameter, of_parameter in pieces.items():
        layer, _, kind = parameter.rpartition(".")
        matrix = model.get_submodule(layer)
        if kind != "weight" or not isinstance(matrix, Matrix) or matrix.weight.dim() != 2:
            continue
        if not all(checkpoint.is_quantized(piece.name) for piece in of_parameter):
            continue
        grouped = _stacked(checkpoint, of_parameter, tuple(matrix.weight.shape))
        if grouped is not None:
            matrix.use_packed(ops.pack_groups(grouped, is_gated=matrix.is_gated))
            done |= {piece.name for piece in of_parameter}
    return frozenset(done)


def _stacked(
    checkpoint: QuantizedCheckpoint, pieces: Sequence[_Piece], shape: tuple[int, ...]
) -> ops.GroupedWeight | None:
    """Put pieces of one parameter below each other; None where they are not groups alike."""
    ordered = sorted(pieces, key=lambda piece: piece.copy.target[0].start)  # type: ignore[union-attr]
    if any(piece.copy.target[1] != slice(0, shape[1]) for piece in ordered):
        return None
    matrices = {piece.name: checkpoint.matrix(piece.name) for piece in ordered}
    parts = []
    for piece in ordered:
        part = _cut(matrices[piece.name], piece.copy.source)
        if part is None:
            return None
        parts.append(part)
    formats = {_format_of(part) for part in parts}
    group_size = math.gcd(*(part.group_size for part in parts))
    is_same_table = all(part.table is None or torch.equal(part.table, parts[0].table) for part in parts)  # type: ignore[arg-type]
    if len(formats) > 1 or group_size % 2 or group_size < LEAST_GROUP or not is_same_table:
        return None
    (format,) = formats
    if format is ops.WeightFormat.FLOAT8_GROUPS and any(_has_nan(part.codes) for part in parts):
        return None
    if any(part.offsets is not None for part in parts):
        parts = [_with_offsets(part, format) for part in parts]
    parts = [_regrouped(part, group_size) for part in parts]
    for matrix in matrices.values():
        checkpoint.count_kept(matrix)
    return ops.GroupedWeight(
        codes=torch.cat([part.codes.view(torch.uint8) for part in parts]).view(parts[0].codes.dtype),
        scales=torch.cat([part.scales for part in parts]),
        group_size=group_size,
        format=format,
        offsets=None if parts[0].offsets is None else torch.cat([part.offsets for part in parts]),  # type: ignore[misc]
        table=parts[0].table,
    )


def _cut(matrix: QuantizedMatrix, source: tuple[slice | int, ...]) -> QuantizedMatrix | None:
    """Take rows and columns of a matrix; None where its groups are not inputs side by side."""
    if matrix.input_groups is not None or matrix.codes.dim() != 2:
        return None
    rows = source[0] if source else slice(None)
    columns = source[1] if len(source) > 1 else slice(None)
    assert isinstance(columns, slice)
    start, stop, _ = columns.indices(matrix.codes.shape[1])
    matrix = _regrouped(matrix, math.gcd(matrix.group_size, start, stop - start))
    groups = slice(start // matrix.group_size, stop // matrix.group_size)
    return replace(
        matrix,
        codes=matrix.codes[rows, start:stop],
        scales=matrix.scales[rows, groups],
        offsets=None if matrix.offsets is None else matrix.offsets[rows, groups],
    )


def _regrouped(matrix: QuantizedMatrix, group_size: int) -> QuantizedMatrix:
    """Have smaller groups, several of which have the same scale."""
    if group_size == matrix.group_size:
        return matrix
    times, num_groups = matrix.group_size // group_size, -(-matrix.codes.shape[1] // group_size)

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(times, -1)[:, :num_groups]

    offsets = None if matrix.offsets is None else spread(matrix.offsets)
    return replace(matrix, scales=spread(matrix.scales), offsets=offsets, group_size=group_size)


def _with_offsets(matrix: QuantizedMatrix, format: ops.WeightFormat) -> QuantizedMatrix:
    """Have offsets, as a neighbor has; codes of four bits have no sign then."""
    if matrix.offsets is not None:
        return matrix
    shift = _MIDDLE if format is ops.WeightFormat.INT4_GROUPS else 0
    return replace(matrix, codes=matrix.codes + shift, offsets=-shift * matrix.scales)


def _format_of(matrix: QuantizedMatrix) -> ops.WeightFormat:
    if matrix.table is not None:
        return ops.WeightFormat.TABLE4_GROUPS
    if matrix.codes.dtype == torch.float8_e4m3fn:
        return ops.WeightFormat.FLOAT8_GROUPS
    return ops.WeightFormat.INT4_GROUPS if matrix.bits == 4 else ops.WeightFormat.INT8_GROUPS


def _has_nan(codes: torch.Tensor) -> bool:
    return bool((codes.view(torch.uint8) & 0x7F == 0x7F).any())
