"""What the engine and the loader need from every decoder."""

from dataclasses import dataclass
from typing import Protocol

import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels import ops


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where a tensor of the checkpoint goes: a parameter, or some rows of a stacked one."""

    parameter: str
    rows: slice | None = None


class Decoder(Protocol):
    """A decoder-only language model over a paged cache."""

    config: ModelConfig

    def place_of(self, tensor_name: str) -> WeightPlace | None:
        """Say where the checkpoint's tensor goes; None for one the model has no use for."""
        ...

    def prepare(self, dtype: torch.dtype, device: torch.device, max_positions: int) -> None:
        """Compute what does not come from the checkpoint and pack the weights, once they are in."""
        ...

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give each layer its pool of blocks."""
        ...

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """token_ids [num_tokens] -> last hidden states [num_tokens, hidden_size]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size]."""
        ...
