"""A matrix in the order in which the CPU's matrix product reads it."""

from dataclasses import dataclass

import torch

PANEL_WIDTH = 32
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The weight [out_features, in_features] of a linear layer, cut into panels of 32 outputs each.

    Within a panel the same word of all outputs lies together, a word being one float32 or two neighbouring bfloat16.
    """

    panels: torch.Tensor  # [num_panels, in_features / per_word, 32, per_word]; outputs beyond out_features are zero
    out_features: int

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.panels.shape[1] * self.panels.shape[3]

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix: indices [n] -> [n, in_features]."""
        return self.panels[indices // PANEL_WIDTH, :, indices % PANEL_WIDTH].flatten(1)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether its rows are whole words."""
    return weight.shape[1] * weight.element_size() % WORD_BYTES == 0


def pack(weight: torch.Tensor) -> PackedWeight:
    """Copy a weight [out_features, in_features] into panels."""
    out_features, in_features = weight.shape
    per_word = WORD_BYTES // weight.element_size()
    num_whole, num_left = divmod(out_features, PANEL_WIDTH)
    panels = torch.zeros(
        (num_whole + (num_left > 0), in_features // per_word, PANEL_WIDTH, per_word), dtype=weight.dtype
    )
    words = weight.detach().view(out_features, in_features // per_word, per_word)
    panels[:num_whole] = words[: num_whole * PANEL_WIDTH].view(num_whole, PANEL_WIDTH, *words.shape[1:]).transpose(1, 2)
    if num_left:
        panels[num_whole, :, :num_left] = words[num_whole * PANEL_WIDTH :].transpose(0, 1)
    return PackedWeight(panels, out_features)
