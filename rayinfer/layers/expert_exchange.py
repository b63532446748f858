"""All-to-all dispatch of rows to their experts' ranks, and return of the outputs."""

from collections.abc import Callable

import torch

from rayinfer.tensor_parallel import TensorGroup, split


class ExpertExchange:
    """Neighboring experts are one rank's. Every rank takes part in each exchange, also without a row of its own."""

    def __init__(self, group: TensorGroup, num_experts: int) -> None:
        self._group = group
        self._experts = split(num_experts, group.size, "experts")

    @property
    def experts_here(self) -> range:
        """The experts of this rank."""
        return self._experts[self._group.rank]

    def compute(
        self,
        rows: torch.Tensor,
        starts: torch.Tensor,
        experts: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Let the experts of all ranks compute rows [num_rows, width] sorted by expert -> the same shape.

        starts [num_experts + 1] is where each expert's rows begin. `experts` computes for those of this rank, and gets
        the same of them.
        """
        num_here, size = len(self.experts_here), self._group.size
        counts = starts.diff()
        counts_here = self._group.all_to_all(counts, [len(each) for each in self._experts], [num_here] * size)
        sent = [int(part.sum()) for part in torch.split(counts, [len(each) for each in self._experts])]
        received = counts_here.view(size, num_here).sum(1).tolist()
        came = self._group.all_to_all(rows, sent, received)
        # They came by rank and, within a rank, by expert.
        expert_of = torch.arange(num_here, device=rows.device).repeat(size).repeat_interleave(counts_here)
        by_expert, order = expert_of.sort(stable=True)
        starts_here = torch.searchsorted(by_expert, torch.arange(num_here + 1, device=rows.device))
        computed = experts(came.index_select(0, order), starts_here)
        back = torch.empty_like(computed).index_copy_(0, order, computed)
        return self._group.all_to_all(back, received, sent)
