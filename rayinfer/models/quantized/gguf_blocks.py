"""Blocks of GGUF files as llama.cpp defines them: q4_0, q4_1, q4_k, q6_k and q8_0, in a folder made by `keep_blocks`.

A tensor NAME is stored as NAME.q4_1 and so on, uint8 [out_features, bytes of a row], with the file's own bytes. Numbers
of q4_0 and q4_1 lie in blocks of 32 (scale, and for q4_1 a least number, in float16; the first half of the numbers in
the lower halves of the bytes), those of q8_0 in blocks of 32 bytes behind a scale. Blocks of q4_k and q6_k have 256
numbers, in groups of 32 and 16 whose scales have a scale themselves.
"""

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import QuantizationSettings, TensorSource, two_axes
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix

_MIDDLE_4, _MIDDLE_6 = 8, 32


class BlockKind(NamedTuple):
    """A kind of blocks: how many numbers and bytes one has, and how some of them are read."""

    num_numbers: int
    num_bytes: int
    read: Callable[[torch.Tensor], QuantizedMatrix]  # uint8 [out_features, num_blocks, num_bytes]


class GgufReader:
    """Matrices in blocks, each tensor in a kind of its own."""

    def __init__(self, settings: QuantizationSettings) -> None:
        pass  # the names of tensors say it all

    @property
    def description(self) -> str:
        """The format in a few words."""
        return "gguf blocks"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all tensors in blocks."""
        return {name.rpartition(".")[0]: frozenset({name}) for name in names if _STORED.fullmatch(name)}

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        name, kind = self._stored(tensors, matrix)
        num_outputs, num_bytes = two_axes(tensors, name)
        if num_bytes % kind.num_bytes or tensors.dtype(name) != torch.uint8:
            raise ModelLoadError(f"tensor {name} has rows of {num_bytes} bytes, no multiple of {kind.num_bytes}")
        return num_outputs, num_bytes // kind.num_bytes * kind.num_numbers

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        name, kind = self._stored(tensors, matrix)
        num_outputs, _ = self.shape(tensors, matrix)
        return kind.read(tensors.read(name).view(num_outputs, -1, kind.num_bytes))

    def _stored(self, tensors: TensorSource, matrix: str) -> tuple[str, BlockKind]:
        for word, kind in BLOCK_KINDS.items():
            try:
                tensors.shape(f"{matrix}.{word}")
            except ModelLoadError:
                continue
            return f"{matrix}.{word}", kind
        raise ModelLoadError(f"tensor {matrix} is missing")


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] -> [..., 2 n]: all lower halves, then all upper ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _float16(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Two bytes of each block as a number, float32 [out_features, num_blocks]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16)[..., 0].float()


def _q4_0(blocks: torch.Tensor) -> QuantizedMatrix:
    codes = _halves(blocks[..., 2:]).flatten(1).to(torch.int8) - _MIDDLE_4
    return QuantizedMatrix(codes=codes, scales=_float16(blocks, 0), group_size=32, bits=4)


def _q4_1(blocks: torch.Tensor) -> QuantizedMatrix:
    codes = _halves(blocks[..., 4:]).flatten(1).to(torch.int8)
    return QuantizedMatrix(codes=codes, scales=_float16(blocks, 0), offsets=_float16(blocks, 2), group_size=32, bits=4)


def _q8_0(blocks: torch.Tensor) -> QuantizedMatrix:
    codes = blocks[..., 2:].contiguous().view(torch.int8).flatten(1)
    return QuantizedMatrix(codes=codes, scales=_float16(blocks, 0), group_size=32, bits=8)


def _q4_k(blocks: torch.Tensor) -> QuantizedMatrix:
    """Eight groups of 32, each with six bits of scale and six of a least number, in twelve bytes."""
    first, second, upper = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, upper & 15 | first >> 6 << 4), -1)
    leasts = torch.cat((second & 63, upper >> 4 | second >> 6 << 4), -1)
    codes = _halves(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)).flatten(1).to(torch.int8)
    return QuantizedMatrix(
        codes=codes,
        scales=(_float16(blocks, 0)[..., None] * scales).flatten(1),
        offsets=-(_float16(blocks, 2)[..., None] * leasts).flatten(1),
        group_size=32,
        bits=4,
    )


def _q6_k(blocks: torch.Tensor) -> QuantizedMatrix:
    """Sixteen groups of 16: four bits of each number, then two more, for 128 numbers at a time."""
    low = _halves(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64))
    pairs = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32)
    high = torch.cat([pairs >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    codes = (low | high << 4).flatten(1).to(torch.int8) - _MIDDLE_6
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return QuantizedMatrix(
        codes=codes, scales=(_float16(blocks, 208)[..., None] * scales).flatten(1), group_size=16, bits=8
    )


BLOCK_KINDS: Mapping[str, BlockKind] = MappingProxyType(
    {
        "q4_0": BlockKind(32, 18, _q4_0),
        "q4_1": BlockKind(32, 20, _q4_1),
        "q4_k": BlockKind(256, 144, _q4_k),
        "q6_k": BlockKind(256, 210, _q6_k),
        "q8_0": BlockKind(32, 34, _q8_0),
    }
)
_STORED = re.compile(rf".+\.({'|'.join(BLOCK_KINDS)})")
