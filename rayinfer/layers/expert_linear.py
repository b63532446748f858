"""The same linear layer of many experts, multiplied as one."""

from collections.abc import Mapping

import torch

from rayinfer.layers.checkpoint_slices import CheckpointSlice, WeightLayout
from rayinfer.layers.matrix import Matrix


class ExpertLinear(Matrix, WeightLayout):
    """A linear layer per expert, or several of one input stacked: weight [num_experts, out_features, in_features].

    `parts` names the layers of one expert in order with their widths.
    """

    def __init__(self, num_experts: int, in_features: int, parts: Mapping[str, int]) -> None:
        super().__init__(num_experts, sum(parts.values()), in_features)
        self._num_experts = num_experts
        self._parts = dict(parts)

    def forward(self, x: torch.Tensor, expert_starts: torch.Tensor) -> torch.Tensor:
        """x [num_rows, in_features] sorted by expert -> [num_rows, out_features]; expert_starts [num_experts + 1]."""
        return self.multiply_groups(x, expert_starts)

    def checkpoint_slices(self, path: str) -> dict[str, CheckpointSlice]:
        """The checkpoint holds each expert's parts one by one, or all experts in one tensor of this layer's name."""
        parent, parameter = path.rpartition(".")[0], f"{path}.weight"
        slices: dict[str, CheckpointSlice] = {}
        for expert in range(self._num_experts):
            start = 0
            for part, width in self._parts.items():
                rows = slice(start, start + width)
                slices[f"{parent}.{expert}.{part}.weight"] = CheckpointSlice(parameter, (expert, rows))
                start += width
        return slices | {path: CheckpointSlice(parameter, replaces=frozenset(slices))}
