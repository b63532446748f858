"""Rotary position embeddings: the angles of every position, and their scalings."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from rayinfer_kernels import ops

ROPE_TYPES = ("default", "linear", "llama3")

Angles = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, each [num_tokens, head_dim]


class RotaryEmbedding:
    """Rotates queries and keys by their positions; cosines and sines of all positions are computed once."""

    def __init__(self, head_dim: int, max_positions: int, rope: Mapping[str, Any]) -> None:
        self._head_dim = head_dim
        self._max_positions = max_positions
        self._rope = dict(rope)
        self._cos = self._sin = torch.empty(0)

    def prepare(self, dtype: torch.dtype, device: torch.device, max_positions: int | None = None) -> None:
        """Compute the tables [max_positions, head_dim] in float32 and keep them in `dtype`."""
        frequencies = inverse_frequencies(self._head_dim, self._rope)
        positions = torch.arange(max_positions or self._max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies).repeat(1, 2)
        self._cos, self._sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)

    def angles(self, positions: torch.Tensor) -> Angles:
        """Cosines and sines of `positions` [num_tokens], each [num_tokens, head_dim]."""
        return self._cos[positions], self._sin[positions]

    def forward(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """x [num_tokens, num_heads, head_dim] -> the same shape."""
        return ops.rotary_embedding(x, *angles)


def inverse_frequencies(head_dim: int, rope: Mapping[str, Any]) -> torch.Tensor:
    """Radians per position for each pair of channels, [head_dim / 2], scaled as `rope["rope_type"]` says."""
    base = float(rope.get("rope_theta", 10000.0))
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    rope_type = rope.get("rope_type", "default")
    if rope_type == "linear":
        return frequencies / float(rope["factor"])
    if rope_type == "llama3":
        return _stretch_low_frequencies(frequencies, rope)
    return frequencies


def _stretch_low_frequencies(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    # Llama 3.1: waves longer than the original context are slowed by `factor`, short ones kept, the rest blended.
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    wavelengths = 2 * math.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies
