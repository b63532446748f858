"""Weights of eight bits with scales of whole tensors, outputs, groups of inputs or blocks of both."""

from collections.abc import Sequence

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import SCALES, TensorSource
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix


def scaled_by_shape(
    tensors: TensorSource, weight: str, scale: str, block: Sequence[int] | None = None, zero_point: str | None = None
) -> QuantizedMatrix:
    """Read codes [out_features, in_features] of int8 or e4m3, and scales whose shape says what each of them is for.

    One number scales the whole matrix, [out_features] or [out_features, 1] each output, [out_features, num_groups]
    groups of inputs, and with `block` (outputs, inputs) each scale is a block's.
    """
    codes, given = tensors.read(weight), tensors.read(scale)
    if tensors.dtype(scale) not in SCALES:
        raise ModelLoadError(f"tensor {scale} has dtype {tensors.dtype(scale)}, expected a floating point one")
    scales, group_size = _by_output_and_group(scale, given.float(), codes.shape, block)
    offsets = None
    if zero_point is not None:
        zeros = tensors.read(zero_point).float()
        if zeros.shape != given.shape:
            raise ModelLoadError(f"tensor {zero_point} has shape {tuple(zeros.shape)}, expected {tuple(given.shape)}")
        zeros, _ = _by_output_and_group(zero_point, zeros, codes.shape, block)
        offsets = -zeros * scales if bool(zeros.any()) else None
    return QuantizedMatrix(codes=codes, scales=scales, group_size=group_size, bits=8, offsets=offsets)


def _by_output_and_group(
    name: str, given: torch.Tensor, shape: Sequence[int], block: Sequence[int] | None
) -> tuple[torch.Tensor, int]:
    """Spread scales: float32 [out_features, num_groups], and how many inputs a group has."""
    num_outputs, num_inputs = shape
    if block is not None:
        rows, columns = block
        expected = (-(-num_outputs // rows), -(-num_inputs // columns))
        if given.shape != expected:
            raise ModelLoadError(f"tensor {name} has shape {tuple(given.shape)}, expected {expected}")
        return given.repeat_interleave(rows, 0)[:num_outputs].contiguous(), columns
    if given.numel() == 1:
        return given.reshape(1, 1).expand(num_outputs, 1).contiguous(), max(num_inputs, 1)
    if given.shape == (num_outputs,):
        given = given[:, None]
    if given.dim() != 2 or len(given) != num_outputs or not given.shape[1] or num_inputs % given.shape[1]:
        raise ModelLoadError(
            f"tensor {name} has shape {tuple(given.shape)}, which fits no weight of shape {tuple(shape)}"
        )
    return given.contiguous(), num_inputs // given.shape[1]
