"""Interface of decoders to the engine and the loader."""

from collections.abc import Mapping
from typing import Protocol

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.shards import ShardSlice
from rayinfer.models.model_config import ModelConfig
from rayinfer.tensor_parallel import Shard
from rayinfer_kernels import ops


class Decoder(Protocol):
    """A decoder-only language model over a paged cache."""

    config: ModelConfig  # of the whole model

    @property
    def num_layers_here(self) -> int:
        """The number of layers on this rank, and of its KV caches."""
        ...

    @property
    def num_kv_heads_here(self) -> int:
        """The number of KV heads of this rank in each layer."""
        ...

    def take_shard(self, shard: Shard) -> Mapping[str, ShardSlice]:
        """See Shardable; a model without weights becomes one rank's part, but for layers that are Shardable."""
        ...

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """Name every tensor that the checkpoint must hold, with the slice of a parameter that it fills."""
        ...

    def known_name(self, tensor_name: str) -> str | None:
        """Rename a tensor of the checkpoint as in `checkpoint_slices`; None for one the model has no use for."""
        ...

    def prepare(
        self, dtype: torch.dtype, device: torch.device, max_positions: int, longest_sequence: int | None = None
    ) -> None:
        """Compute what does not come from the checkpoint and pack the weights, once they are in.

        No position reaches max_positions. `longest_sequence` is what the settings allow, whatever memory does: it
        decides some rotary scalings, so it must be the same wherever the model's tokens must be.
        """
        ...

    def bind_kv_caches(self, kv_caches: list[ops.KVCache]) -> None:
        """Give each layer its pool of blocks."""
        ...

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """token_ids [num_tokens] -> last hidden states [num_outputs, hidden_size], of `batch.outputs` or all tokens.

        Of several stages, each but the first goes on from `hidden`, what the one before it returned for all tokens.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [num_rows, hidden_size] -> [num_rows, vocab_size], on all ranks of the last stage."""
        ...
