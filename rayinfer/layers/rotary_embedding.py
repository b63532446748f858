"""Rotary position embeddings (Su et al. 2021), and those of three positions (M-RoPE; Wang et al. 2024)."""

from collections.abc import Sequence

import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.rope_scaling import SCALINGS, Rope, rotation
from rayinfer_kernels import ops

SECTIONS = (16, 24, 24)  # pairs of channels that rotate by time, height and width
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


class MultimodalRotaryEmbedding(RotaryEmbedding):
    """Rotates each section of a head's channels by one of a token's three positions.

    Where the three are equal, as of all text, this is an ordinary rotary embedding: tokens are looked up in the same
    tables by their one position. For tokens of images the tables have spare rows behind those of the positions, which
    a step fills with what its tokens need; so nothing that looks rows up knows of the three positions.
    """

    def __init__(self, head_dim: int, max_positions: int, rope: Rope) -> None:
        is_unscaled = rope.get("rope_type") == "mrope"  # as the first checkpoints call it
        super().__init__(head_dim, max_positions, {**rope, "rope_type": "default"} if is_unscaled else rope)
        sections = rope.get("mrope_section", SECTIONS)
        if not isinstance(sections, Sequence) or not all(isinstance(each, int) and each >= 0 for each in sections):
            raise ValueError(f"mrope_section must be a list of whole numbers, got {sections!r}")
        if 2 * sum(sections) != head_dim:
            raise ValueError(f"mrope_section {list(sections)} must make {head_dim // 2} pairs of channels")
        axes = [index % 3 for index, section in enumerate(sections) for _ in range(section)]
        self._axes = [*axes, *axes]  # of each channel
        self._num_spare = 0
        self.num_positions = 0  # the rows of the tables that have positions

    def reserve(self, num_tokens: int) -> None:
        """Keep spare rows for so many tokens of images in a step. It comes before `prepare`."""
        self._num_spare = num_tokens

    def prepare(
        self,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int | None = None,
        longest_sequence: int | None = None,
    ) -> None:
        """See RotaryEmbedding."""
        super().prepare(dtype, device, max_positions, longest_sequence)
        self.num_positions = len(self._cos)
        self._cos, self._sin = (
            torch.cat((table, table.new_zeros(self._num_spare, table.shape[1]))) for table in (self._cos, self._sin)
        )

    def fill(self, positions: torch.Tensor) -> None:
        """Fill the first spare rows for tokens with these positions, int64 [3, num_tokens]."""
        rows, channels = positions[self._axes].T, torch.arange(len(self._axes), device=positions.device)
        first, count = self.num_positions, positions.shape[1]
        for table in self.tables:
            table[first : first + count] = table[rows, channels]
