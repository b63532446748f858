"""T5's relative position bias: added to attention scores by token distance (Raffel et al. 2020)."""

import math
from collections.abc import Mapping

import torch

from rayinfer.layers.shards import Shardable, ShardSlice, shard_heads
from rayinfer.tensor_parallel import Shard


class RelativePositionBias(torch.nn.Module, Shardable):
    """A number per head and bucket of distances, [num_buckets, num_heads]; from `max_distance` on all are one bucket.

    `is_causal`: a decoder looks back only, an encoder both ways with half of the buckets each.
    """

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, *, is_causal: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(num_buckets, num_heads), requires_grad=False)
        self._num_heads, self._num_buckets = num_heads, num_buckets
        self._max_distance = max_distance
        self._is_causal = is_causal
        self.table = torch.empty(0)

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable: a rank has some of the heads."""
        return {"weight": ShardSlice(1, (shard_heads(self._num_heads, self._num_heads, shard.coordinates).query,))}

    def prepare(self) -> None:
        """Look all distances up at once: `table` [num_heads, num_distances] in float32.

        Its columns are the distances 0, 1, ... back from the query, and for an encoder -max_distance to max_distance
        from key to query.
        """
        distances = torch.arange(0 if self._is_causal else -self._max_distance, self._max_distance + 1)
        buckets = self._buckets(distances).to(self.weight.device)
        self.table = self.weight[buckets].T.float().contiguous()

    def matrix(self, length: int) -> torch.Tensor:
        """The biases of an encoder's source, [num_heads, length, length] by query and key."""
        positions = torch.arange(length, device=self.table.device)
        distances = positions[:, None] - positions
        return self.table[:, distances.clamp(-self._max_distance, self._max_distance) + self._max_distance]

    def _buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """Short distances have a bucket each, longer ones share theirs, the wider the further."""
        num_buckets, ahead = self._num_buckets, torch.zeros_like(distances)
        if not self._is_causal:
            num_buckets //= 2
            ahead = (distances < 0) * num_buckets
            distances = distances.abs()
        num_exact = num_buckets // 2
        fraction = torch.log(distances.float() / num_exact) / math.log(self._max_distance / num_exact)
        wide = num_exact + (fraction * (num_buckets - num_exact)).clamp(max=num_buckets - num_exact - 1).long()
        return ahead + torch.where(distances < num_exact, distances, wide)
