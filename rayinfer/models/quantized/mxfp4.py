"""MXFP4 checkpoints (OCP microscaling formats): e2m1 in blocks of 32 inputs with a scale that is an exponent alone.

`NAME_blocks` is uint8 [..., out_features, num_groups, 16], the first number in the lower half, and `NAME_scales` uint8
[..., out_features, num_groups] (e8m0); together they are the tensor NAME.
"""

from collections.abc import Collection

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import QuantizationSettings, TensorSource, check_tensor
from rayinfer.models.quantized.packed_integers import FLOAT4, powers_of_two, unpack_nibbles
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix

_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP_SIZE = 32


class Mxfp4Reader:
    """Matrices, or stacks of them, of four bits with an exponent."""

    def __init__(self, settings: QuantizationSettings) -> None:
        pass  # the format has no variants

    @property
    def description(self) -> str:
        """The format in a few words."""
        return "mxfp4, e2m1, groups of 32"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all tensors in blocks."""
        known, found = frozenset(names), {}
        for name in names:
            if name.endswith(_BLOCKS):
                matrix = name.removesuffix(_BLOCKS)
                found[matrix] = frozenset({name, f"{matrix}{_SCALES}"}) & known
        return found

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [..., out_features, in_features]."""
        shape = tensors.shape(f"{matrix}{_BLOCKS}")
        if len(shape) < 3 or shape[-1] != _GROUP_SIZE // 2:
            raise ModelLoadError(f"tensor {matrix}{_BLOCKS} has shape {shape}, expected blocks of 16 bytes")
        return (*shape[:-2], shape[-2] * _GROUP_SIZE)

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        shape = self.shape(tensors, matrix)
        num_groups = shape[-1] // _GROUP_SIZE
        check_tensor(tensors, f"{matrix}{_BLOCKS}", (*shape[:-1], num_groups, 16), (torch.uint8,))
        check_tensor(tensors, f"{matrix}{_SCALES}", (*shape[:-1], num_groups), (torch.uint8,))
        return QuantizedMatrix(
            codes=unpack_nibbles(tensors.read(f"{matrix}{_BLOCKS}")).flatten(-2),
            scales=powers_of_two(tensors.read(f"{matrix}{_SCALES}")),
            group_size=_GROUP_SIZE,
            bits=4,
            table=FLOAT4,
        )
