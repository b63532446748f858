"""Linear layers, alone or several stacked into one product."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from rayinfer.layers.checkpoint_slices import CheckpointSlice, WeightLayout
from rayinfer.layers.matrix import Matrix
from rayinfer.layers.shards import ShardSlice
from rayinfer.tensor_parallel import SingleRankGroup, TensorGroup
from rayinfer_kernels import ops


class Linear(Matrix):
    """y = x W^T + b; weight [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, is_gated: bool = False) -> None:
        super().__init__(out_features, in_features, is_gated=is_gated)
        self.bias = torch.nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self._group: TensorGroup = SingleRankGroup()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]."""
        if self._group.size == 1:
            return self.multiply(x, self.bias)
        if self.packed is not None and (num_missing := self.packed.in_features - x.shape[1]):
            # Inputs that share a scale stay together: those before this rank's have weights of zero.
            x = F.pad(x, (num_missing, 0))
        summed = self._group.all_reduce(self.multiply(x))
        return summed if self.bias is None else summed + self.bias

    def keep_outputs(self, path: str, *rows: range) -> dict[str, ShardSlice]:
        """Return how parameters are cut where a rank computes some of the outputs; the layer stands at `path`."""
        return {f"{path}.{kind}": ShardSlice(0, rows) for kind, _ in self.named_parameters(recurse=False)}

    def keep_inputs(self, path: str, columns: range, group: TensorGroup) -> dict[str, ShardSlice]:
        """Return the same where each rank has some of the inputs: then the outputs are summed over the group."""
        self._group = group
        return {f"{path}.weight": ShardSlice(1, (columns,))}

    @property
    def packed_linear(self) -> ops.PackedLinear | None:
        """The layer for operations on several layers; None where it needs other ranks."""
        return ops.PackedLinear(self.operand, self.bias) if self._group.size == 1 else None

    def gate(self, x: torch.Tensor, activation: ops.Gate) -> torch.Tensor:
        """x [num_tokens, in_features] -> activation(first half) * second half, [num_tokens, out_features / 2]."""
        return self.multiply_gated(x, self.bias, activation)


class StackedLinear(Linear, WeightLayout):
    """Several linear layers of one input computed as one; `parts` names them in order with their widths."""

    def __init__(
        self, in_features: int, parts: Mapping[str, int], *, bias: bool = False, is_gated: bool = False
    ) -> None:
        super().__init__(in_features, sum(parts.values()), bias=bias, is_gated=is_gated)
        self.widths = list(parts.values())
        self.rows: dict[str, slice] = {}
        start = 0
        for name, width in parts.items():
            self.rows[name] = slice(start, start + width)
            start += width

    def checkpoint_slices(self, path: str) -> dict[str, CheckpointSlice]:
        """The checkpoint holds the parts one by one, where this layer stands."""
        parent, kinds = path.rpartition(".")[0], [kind for kind, _ in self.named_parameters(recurse=False)]
        return {
            f"{parent}.{part}.{kind}": CheckpointSlice(f"{path}.{kind}", rows)
            for part, rows in self.rows.items()
            for kind in kinds
        }


class FusedLinear(Linear):
    """Several linear layers of one input that the checkpoint holds in one piece, too."""

    def __init__(self, in_features: int, widths: list[int], *, bias: bool = False, is_gated: bool = False) -> None:
        super().__init__(in_features, sum(widths), bias=bias, is_gated=is_gated)
        self.widths = widths
