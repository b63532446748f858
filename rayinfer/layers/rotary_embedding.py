"""Rotary position embeddings (Su et al. 2021)."""

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.rope_scaling import SCALINGS, Rope, rotation
from rayinfer_kernels import ops

Angles = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, each [num_tokens, rotary_dim]


class RotaryEmbedding:
    """Rotates queries and keys by their positions; cosines and sines of all positions are computed once.

    Only a head's first channels are rotated where `rope` has a `partial_rotary_factor`.
    """

    def __init__(self, head_dim: int, max_positions: int, rope: Rope) -> None:
        if (rope_type := rope.get("rope_type", "default")) not in SCALINGS:
            raise UnsupportedArchitecture(f"rope_type {rope_type!r} is not supported, only {', '.join(SCALINGS)}")
        self._head_dim = head_dim
        self._max_positions = max_positions
        self._rope = dict(rope)
        self._cos = self._sin = torch.empty(0)

    def prepare(
        self,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int | None = None,
        longest_sequence: int | None = None,
    ) -> None:
        """Compute the tables [max_positions, rotary_dim] in float32 and keep them in `dtype`.

        Scalings that depend on length take `longest_sequence`, by default max_positions.
        """
        num_positions = max_positions or self._max_positions
        turning = rotation(self._head_dim, self._rope, longest_sequence or num_positions)
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, turning.frequencies).repeat(1, 2)
        self._cos = (angles.cos() * turning.amplitude).to(device, dtype)
        self._sin = (angles.sin() * turning.amplitude).to(device, dtype)

    @property
    def tables(self) -> Angles:
        """Cosines and sines of all positions."""
        return self._cos, self._sin

    def angles(self, positions: torch.Tensor) -> Angles:
        """Cosines and sines of `positions` [num_tokens], each [num_tokens, rotary_dim]."""
        return self._cos[positions], self._sin[positions]

    def forward(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """x [num_tokens, num_heads, head_dim] -> the same shape."""
        rotary_dim = angles[0].shape[-1]
        if rotary_dim == x.shape[-1]:
            return ops.rotary_embedding(x, *angles)
        return torch.cat((ops.rotary_embedding(x[..., :rotary_dim], *angles), x[..., rotary_dim:]), -1)
