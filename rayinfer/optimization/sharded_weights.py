"""Data of other ranks' parts that make a rank's quantized weights equal to those of the whole model."""

from collections.abc import Collection
from pathlib import Path

import torch

from rayinfer.layers.shards import ShardSlice
from rayinfer.models.loader import read_parameters
from rayinfer_kernels import ops

OUTPUTS, INPUTS = 0, 1  # the axes of a matrix


def largest_by_output(folder: Path, names: Collection[str], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Find how large the numbers of each output of these whole matrices are, float32 [out_features] by name.

    A matrix is read piece by piece as the checkpoint holds it, and nothing of it is kept.
    """
    parameters = {f"{name}.weight": name for name in names}
    found: dict[str, torch.Tensor] = {}
    for piece in read_parameters(folder, parameters):
        largest = torch.linalg.vector_norm(piece.tensor.to(dtype), ord=torch.inf, dim=-1).float()
        of_all = found.setdefault(parameters[piece.parameter], torch.zeros(piece.shape[:-1]))
        of_all[piece.index] = largest
    return found


def shard_of(quantized: ops.QuantizedWeight, cut: ShardSlice | None) -> ops.QuantizedWeight:
    """Take a rank's part of a whole matrix.

    Groups of inputs that have one scale are not cut. Where a part begins within a group, it begins with the group, and
    the numbers before it are zero.
    """
    if cut is None:
        return quantized
    if cut.axis == OUTPUTS:
        offsets = None if quantized.offsets is None else quantized.offsets.each(cut.of)
        return ops.QuantizedWeight(cut.of(quantized.q), cut.of(quantized.scales), quantized.format, offsets)
    (kept,) = cut.ranges
    if quantized.format is not ops.WeightFormat.INT4_DYNAMIC:
        return ops.QuantizedWeight(cut.of(quantized.q).contiguous(), quantized.scales, quantized.format)
    groups = slice(kept.start // ops.GROUP_SIZE, -(-kept.stop // ops.GROUP_SIZE))
    start = groups.start * ops.GROUP_SIZE
    numbers = quantized.q[:, start : kept.stop].clone()
    numbers[:, : kept.start - start] = 0
    offsets = quantized.offsets
    if offsets is not None:
        scale_q, q = (each[:, groups].contiguous() for each in (offsets.scale_q, offsets.q))
        offsets = ops.GroupOffsets(scale_q, q, offsets.units, offsets.ratios)
    return ops.QuantizedWeight(numbers, quantized.scales[:, groups].contiguous(), quantized.format, offsets)
