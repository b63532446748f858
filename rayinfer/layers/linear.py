"""Linear layers, alone or several stacked into one product."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from rayinfer.layers.checkpoint_slices import CheckpointSlice, WeightLayout
from rayinfer.layers.matrix import Matrix
from rayinfer.layers.shards import ShardSlice
from rayinfer.tensor_parallel import SingleRankGroup, TensorGroup
from rayinfer_kernels import ops


class LowRankTerm(NamedTuple):
    """Term of an adapter, added to some outputs of a whole linear layer: x A^T B^T scale."""

    a: torch.Tensor  # [rank, in_features]
    b: torch.Tensor  # [number of outputs, rank]
    outputs: range
    scale: float


class AdapterSlots:
    """The adapters of a model's layers, and the slots of the current step's tokens; all layers share one."""

    def __init__(self, num_slots: int) -> None:
        self.adapters: list[str | None] = [None] * num_slots
        self.tokens: ops.TokenSlots | None = None  # of the current step; None: no token has an adapter

    def __len__(self) -> int:
        return len(self.adapters)


class Linear(Matrix):
    """y = x W^T + b; weight [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, is_gated: bool = False) -> None:
        super().__init__(out_features, in_features, is_gated=is_gated)
        self.bias = torch.nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self._group: TensorGroup = SingleRankGroup()
        halves = range(out_features // 2), range(out_features // 2, out_features)
        self._outputs: tuple[range, ...] = halves if is_gated else (range(out_features),)  # here
        self._inputs = range(in_features)  # here
        self._adapter_slots: AdapterSlots | None = None
        self.adapters: ops.LowRankTable | None = None  # the terms of adapters, where requests may have some

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
        self._outputs = rows
        return {f"{path}.{kind}": ShardSlice(0, rows) for kind, _ in self.named_parameters(recurse=False)}

    def keep_inputs(self, path: str, columns: range, group: TensorGroup) -> dict[str, ShardSlice]:
        """Return the same where each rank has some of the inputs: then the outputs are summed over the group."""
        self._group, self._inputs = group, columns
        return {f"{path}.weight": ShardSlice(1, (columns,))}

    @property
    def packed_linear(self) -> ops.PackedLinear | None:
        """The layer for operations on several layers; None where it needs other ranks."""
        return ops.PackedLinear(self.operand, self.bias, self.adapters) if self._group.size == 1 else None

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, in_features] -> x W^T + bias and the terms of adapters, [num_tokens, out_features]."""
        return ops.linear(x, self.operand, bias, self._low_rank)

    def gate(self, x: torch.Tensor, activation: ops.Gate) -> torch.Tensor:
        """x [num_tokens, in_features] -> activation(first half) * second half, [num_tokens, out_features / 2]."""
        return ops.gated_linear(x, self.operand, self.bias, activation, self._low_rank)

    # Adapters

    def use_adapters(self, slots: AdapterSlots) -> None:
        """Let each token of a step have the adapter of a slot, or none."""
        self._adapter_slots, self.adapters = slots, ops.LowRankTable(len(slots))

    def low_rank_parts(
        self, terms: Sequence[LowRankTerm], dtype: torch.dtype, device: torch.device
    ) -> Iterator[ops.LowRankPart]:
        """Cut terms of the whole layer to what this rank computes of it, as the kernels read them."""
        for term in terms:
            a = term.a[:, self._inputs.start : self._inputs.stop].to(device, dtype)
            if self.packed is not None:
                a = F.pad(a, (self.packed.in_features - a.shape[1], 0))  # as inputs are
            half = sum(map(len, self._outputs)) // 2
            for first, b in _outputs_here(term, self._outputs, is_gated=self.is_gated):
                is_second = self.is_gated and first >= half
                yield ops.low_rank_part(
                    a, b.to(device, dtype), first - half * is_second, term.scale, is_second_half=is_second
                )

    @property
    def _low_rank(self) -> ops.LowRank | None:
        if self.adapters is None or self._adapter_slots is None or self._adapter_slots.tokens is None:
            return None
        return ops.LowRank(self.adapters, self._adapter_slots.tokens)


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


def _outputs_here(term: LowRankTerm, kept: Sequence[range], *, is_gated: bool) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the parts of `term.b` that lie in `kept`, each with its first output among those.

    Of a gated layer there is one for each half; of others they lie behind one another and are yielded as one.
    """
    pieces: list[tuple[int, torch.Tensor]] = []
    start = 0
    for outputs in kept:
        first, last = max(outputs.start, term.outputs.start), min(outputs.stop, term.outputs.stop)
        if first < last:
            b = term.b[first - term.outputs.start : last - term.outputs.start]
            pieces.append((start + first - outputs.start, b))
        start += len(outputs)
    if is_gated:
        yield from pieces
    elif pieces:
        yield pieces[0][0], torch.cat([b for _, b in pieces])
