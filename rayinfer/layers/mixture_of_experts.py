"""A feed-forward part of many experts, of which each token goes to a few (Shazeer et al. 2017)."""

from collections.abc import Mapping

import torch

from rayinfer.layers.expert_exchange import ExpertExchange
from rayinfer.layers.expert_linear import ExpertLinear
from rayinfer.layers.linear import Linear
from rayinfer.layers.shards import Shardable, ShardSlice
from rayinfer.tensor_parallel import UNSHARDED, Shard, even_parts
from rayinfer_kernels import ops


class MixtureOfExperts(torch.nn.Module, Shardable):
    """Each token goes to the `experts_per_token` experts that the router finds most probable.

    Their outputs are weighted by these probabilities, which `renormalize` scales to a sum of 1. The router may have a
    `bias`; `experts` are GatedExperts unless others are given.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        num_experts: int,
        experts_per_token: int,
        renormalize: bool,
        bias: bool = False,
        experts: "GatedExperts | None" = None,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts, bias=bias)
        self.experts = experts or GatedExperts(hidden_size, intermediate_size, num_experts)
        self._experts_per_token = experts_per_token
        self._renormalize = renormalize
        self._group = UNSHARDED.group

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the experts, and sends some of a step's tokens to them all."""
        self._group = shard.group
        return {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape."""
        if self._group.size == 1:
            return self._route(x)
        counts = [len(rows) for rows in even_parts(len(x), self._group.size)]
        routed = self._route(torch.split(x, counts)[self._group.rank])
        widths = [count * x.shape[1] for count in counts]
        return self._group.all_gather(routed.flatten(), widths).view_as(x)

    def _route(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = self.gate.forward(x).softmax(-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._experts_per_token)
        if self._renormalize:
            weights /= weights.sum(-1, keepdim=True)
        return self.experts.forward(x, chosen, weights)


class GatedExperts(torch.nn.Module, Shardable):
    """down(silu(gate(x)) * up(x)), by the experts that each token has chosen."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_experts: int) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = ExpertLinear(num_experts, hidden_size, parts)
        self.down_proj = ExpertLinear(num_experts, intermediate_size, {"down_proj": hidden_size})
        self._num_experts = num_experts
        self._exchange: ExpertExchange | None = None  # where other ranks have the other experts

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the experts."""
        self._exchange = ExpertExchange(shard.group, self._num_experts)
        cut = ShardSlice(0, (self._exchange.experts_here,))
        return {"gate_up_proj.weight": cut, "down_proj.weight": cut}

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, hidden_size] -> the same shape; chosen experts and weights [num_tokens, experts_per_token]."""
        # One row for each pair of a token and an expert: a product takes the rows of an expert together.
        experts, order = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(experts, torch.arange(self._num_experts + 1, device=x.device))
        x_of_pairs = x.index_select(0, order // chosen.shape[1])
        if self._exchange is None:
            rows = self._compute(x_of_pairs, starts)
        else:
            rows = self._exchange.compute(x_of_pairs, starts, self._compute)
        # Each token sums its rows in the order of its own choice, so that its bits do not depend on the batch.
        row_of_pair = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        return ops.moe_combine(rows, row_of_pair.view_as(chosen), weights)

    def _compute(self, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """x [num_rows, hidden_size] sorted by expert -> the same shape; starts [number of experts here + 1]."""
        hidden = self.gated(self.gate_up_proj.forward(x, starts))
        return self.down_proj.forward(hidden, starts)

    def gated(self, stacked: torch.Tensor) -> torch.Tensor:
        """Apply the gate to what `gate_up_proj` gives: [num_rows, 2 x intermediate_size] -> half as wide."""
        return ops.silu_and_mul(stacked)
