"""A matrix in the order in which the CPU's matrix product reads it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

PANEL_WIDTH = 32
PANELS_AT_ONCE = 64  # so that little memory is needed beside the weight
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The weight [out_features, in_features] of a linear layer, cut into panels of 32 outputs each; or several layers'.

    Within a panel the same word of all outputs lies together, a word being one float32 or two neighbouring bfloat16.
    """

    # [num_panels, in_features / per_word, 32, per_word] behind the dimensions that count layers, if any;
    # outputs beyond out_features are zero
    panels: torch.Tensor
    out_features: int

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.panels.shape[-3] * self.panels.shape[-1]

    def layer(self, index: int) -> "PackedWeight":
        """One of several layers."""
        return PackedWeight(self.panels[index], self.out_features)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix: indices [n] -> [n, in_features]."""
        return self.panels[indices // PANEL_WIDTH, :, indices % PANEL_WIDTH].flatten(1)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether its rows are whole words."""
    return weight.shape[-1] * weight.element_size() % WORD_BYTES == 0


def pack(weight: torch.Tensor) -> PackedWeight:
    """Reorder a weight [..., out_features, in_features] in its own memory where that can be: the weight is lost."""
    *layers, out_features, in_features = weight.shape
    per_word = WORD_BYTES // weight.element_size()
    num_panels = -(-out_features // PANEL_WIDTH)
    storage = weight.detach().contiguous()
    if out_features % PANEL_WIDTH:
        storage = F.pad(storage, (0, 0, 0, num_panels * PANEL_WIDTH - out_features))
    outputs = storage.view(-1, PANEL_WIDTH, in_features // per_word, per_word)
    panels = storage.view(-1, in_features // per_word, PANEL_WIDTH, per_word)
    for start in range(0, len(panels), PANELS_AT_ONCE):
        part = slice(start, start + PANELS_AT_ONCE)
        panels[part] = outputs[part].transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return PackedWeight(panels.view(*layers, num_panels, *panels.shape[1:]), out_features)
