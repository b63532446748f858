"""AWQ checkpoints (AutoAWQ): four bits packed along the outputs, eight of which have an order of their own in a word.

`qweight` int32 [in_features, out_features / 8] and `qzeros` [num_groups, out_features / 8] hold outputs 0, 2, 4, 6, 1,
3, 5, 7 of eight neighbors from the lowest bits up; `scales` are [num_groups, out_features].
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

_TENSORS = ("qweight", "qzeros", "scales")
_BITS, _PER_WORD = 4, 8
_POSITIONS = (0, 4, 1, 5, 2, 6, 3, 7)  # in a word, of outputs 0 to 7
_REMEDY = "use a checkpoint in AutoAWQ's layout of the version gemm with 4 bits"


class AwqReader:
    """Matrices of 4 bits in groups of inputs."""

    def __init__(self, settings: QuantizationSettings) -> None:
        name = "w_bit" if "w_bit" in settings.fields else "bits"
        settings.require(name, (_BITS,), _REMEDY, _BITS)
        if (version := settings.word("version", "gemm")) != "gemm":
            settings.refuse(f"version {version!r}", _REMEDY)
        self._group_size = settings.integer("q_group_size" if "q_group_size" in settings.fields else "group_size", 128)
        if self._group_size != -1 and self._group_size <= 0:
            settings.refuse(f"group_size {self._group_size}", _REMEDY)

    @property
    def description(self) -> str:
        """The format in a few words."""
        groups = "a scale per output" if self._group_size == -1 else f"groups of {self._group_size}"
        return f"awq, {_BITS} bits, {groups}"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all layers that have a `qweight`."""
        return with_suffix(names, "qweight", _TENSORS)

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        num_inputs, num_words = two_axes(tensors, f"{layer_of(matrix)}.qweight")
        return num_words * _PER_WORD, num_inputs

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        layer, (num_outputs, num_inputs) = layer_of(matrix), self.shape(tensors, matrix)
        group_size = num_inputs if self._group_size == -1 else self._group_size
        if num_inputs % group_size:
            raise ModelLoadError(f"tensor {layer}.qweight has {num_inputs} inputs, no multiple of {group_size}")
        num_groups = num_inputs // group_size
        check_tensor(tensors, f"{layer}.qweight", (num_inputs, num_outputs // _PER_WORD), (torch.int32,))
        check_tensor(tensors, f"{layer}.qzeros", (num_groups, num_outputs // _PER_WORD), (torch.int32,))
        check_tensor(tensors, f"{layer}.scales", (num_groups, num_outputs), SCALES)
        return with_zero_points(
            _unpack(tensors.read(f"{layer}.qweight")).T.contiguous(),
            tensors.read(f"{layer}.scales").float().T.contiguous(),
            _unpack(tensors.read(f"{layer}.qzeros")).T.contiguous(),
            bits=_BITS,
            group_size=group_size,
        )


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """int32 [n, outputs / 8] -> [n, outputs], in the outputs' order."""
    in_word = unpack_words(words, _BITS).view(len(words), -1, _PER_WORD)
    return in_word[..., list(_POSITIONS)].flatten(-2)
