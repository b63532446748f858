"""Token ids to vectors, and vectors back to logits."""

from collections.abc import Mapping

import torch

from rayinfer.layers.matrix import Matrix
from rayinfer.layers.shards import Shardable, ShardSlice
from rayinfer.tensor_parallel import UNSHARDED, Shard, split

VOCABULARY = "tokens of the vocabulary"


class TokenEmbedding(Matrix, Shardable):
    """A row per token of the vocabulary: weight [vocab_size, hidden_size]; ranks share the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(vocab_size, hidden_size)
        self._tokens = range(vocab_size)  # whose rows are here
        self._group = UNSHARDED.group

    def take_shard(self, share: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable."""
        self._tokens = split(len(self._tokens), share.group.size, VOCABULARY)[share.group.rank]
        self._group = share.group
        return {"weight": ShardSlice(0, (self._tokens,))}

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        if self._group.size == 1:
            return self.gather_rows(token_ids)
        rows = token_ids - self._tokens.start
        is_elsewhere = (rows < 0) | (rows >= len(self._tokens))
        taken = self.gather_rows(rows.masked_fill(is_elsewhere, 0))
        return self._group.all_reduce(taken.masked_fill(is_elsewhere[:, None], 0))
