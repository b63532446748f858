"""Embeddings of tokens, which may also be the output head, and of learned positions."""

from collections.abc import Mapping

import torch

from rayinfer.layers.matrix import Matrix
from rayinfer.layers.shards import Shardable, ShardSlice
from rayinfer.tensor_parallel import UNSHARDED, Shard, split
from rayinfer_kernels import ops

VOCABULARY = "tokens of the vocabulary"


class TokenEmbedding(Matrix, Shardable):
    """A row per token of the vocabulary: weight [vocab_size, hidden_size]; ranks share the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(vocab_size, hidden_size)
        self._tokens = range(vocab_size)  # of this rank's rows
        self._group = UNSHARDED.group

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable."""
        self._tokens = split(len(self._tokens), shard.group.size, VOCABULARY)[shard.group.rank]
        self._group = shard.group
        return {"weight": ShardSlice(0, (self._tokens,))}

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        if self._group.size == 1:
            return self.gather_rows(token_ids)
        rows = token_ids - self._tokens.start
        is_remote = (rows < 0) | (rows >= len(self._tokens))
        gathered = self.gather_rows(rows.masked_fill(is_remote, 0))
        return self._group.all_reduce(gathered.masked_fill(is_remote[:, None], 0))


class PositionEmbedding(torch.nn.Module):
    """A vector per position, to be added to the token's: weight [max_positions, hidden_size]."""

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(max_positions, hidden_size), requires_grad=False)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """positions [num_tokens] -> [num_tokens, hidden_size]."""
        return ops.embedding(positions, self.weight)
