"""Token ids to vectors, and vectors back to logits."""

import torch
import torch.nn.functional as F


class TokenEmbedding(torch.nn.Module):
    """A row per token of the vocabulary: weight [vocab_size, hidden_size]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [num_tokens] -> [num_tokens, hidden_size]."""
        return F.embedding(token_ids, self.weight)
