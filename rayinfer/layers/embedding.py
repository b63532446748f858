"""Token ids to vectors, and vectors back to logits."""

import torch

from rayinfer.layers.matrix import Matrix


class TokenEmbedding(Matrix):
    """A row per token of the vocabulary: weight [vocab_size, hidden_size]."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        return self.take_rows(token_ids)
