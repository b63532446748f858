"""What the engine and the loader need from every decoder."""

from collections.abc import Mapping
from typing import Protocol

import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.layers.weight_places import WeightPlace
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels import ops


class Decoder(Protocol):
    """A decoder-only language model over a paged cache."""

    config: ModelConfig

    def weight_places(self) -> Mapping[str, WeightPlace]:
        """Name every tensor that the checkpoint must hold, and say where it goes."""
        ...

    def known_name(self, tensor_name: str) -> str | None:
        """Spell a tensor of the checkpoint as `weight_places` does; None for one the model has no use for."""
        ...

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Compute what does not come from the checkpoint and pack the weights, once they are in.

        No position reaches max_positions. `longest_sequence` is what the settings allow, whatever memory does: it
        decides how some rotary scalings turn, so it must be the same wherever the model's tokens must be.
        """
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
