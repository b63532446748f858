"""Rotary embeddings of three positions, time, height and width (M-RoPE; Wang et al. 2024)."""

from collections.abc import Sequence

import torch

from rayinfer.layers.rope_scaling import Rope
from rayinfer.layers.rotary_embedding import RotaryEmbedding

SECTIONS = (16, 24, 24)  # pairs of channels that rotate by time, height and width


class MultimodalRotaryEmbedding(RotaryEmbedding):
    """Rotates each section of a head's channels by one of a token's three positions.

    Where the three are equal, as of all text, this is an ordinary rotary embedding: tokens are looked up in the same
    tables by their one position. For tokens of images the tables have spare rows behind those of the positions, which
    a step fills with what its tokens need; so nothing that looks rows up knows of the three positions.
    """

    def __init__(self, head_dim: int, max_positions: int, rope: Rope) -> None:
        super().__init__(head_dim, max_positions, rope)
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
