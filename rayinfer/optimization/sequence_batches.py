"""Sequences of one length that a decoder computes side by side, without an engine."""

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.models.decoder import Decoder
from rayinfer_kernels import ops

BLOCK_SIZE = 16


class SequenceBatches:
    """Room in a paged cache for `num_sequences` sequences of up to `max_length` tokens each.

    With `shares_memory` all layers use the same blocks: enough where each layer is done with its keys and values before
    the next one begins, that is, for sequences that are computed in one step.
    """

    def __init__(
        self, decoder: Decoder, dtype: torch.dtype, num_sequences: int, max_length: int, *, shares_memory: bool = False
    ) -> None:
        config, blocks = decoder.config, -(-max_length // BLOCK_SIZE)
        self._tables = torch.arange(num_sequences * blocks, dtype=torch.int32).view(num_sequences, blocks)
        size = (num_sequences * blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        device = torch.device("cpu")
        shared = ops.allocate_kv_cache(*size, dtype, device) if shares_memory else None
        decoder.bind_kv_caches(
            [shared or ops.allocate_kv_cache(*size, dtype, device) for _ in range(config.num_layers)]
        )

    def step(self, start: int, count: int) -> AttentionBatch:
        """Describe the step that computes `count` tokens of each sequence from position `start` on."""
        num_sequences = len(self._tables)
        positions = torch.arange(start, start + count)
        blocks = self._tables[:, positions // BLOCK_SIZE].long()
        return AttentionBatch(
            positions=positions.repeat(num_sequences),
            slot_mapping=(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).flatten(),
            cu_seqlens_q=torch.arange(num_sequences + 1, dtype=torch.int32) * count,
            seq_lens=torch.full((num_sequences,), start + count, dtype=torch.int32),
            block_tables=self._tables,
            rows=torch.arange(num_sequences),
        )
