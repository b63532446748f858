"""The attention of one layer over its part of the paged cache."""

from dataclasses import dataclass

import torch

from rayinfer_kernels import ops


@dataclass(frozen=True, slots=True)
class WindowTables:
    """Places of a step's keys and values in sliding-window layers, which have a pool of their own."""

    slot_mapping: torch.Tensor  # int64 [num_tokens], page x block_size + offset
    block_tables: torch.Tensor  # int32 [num_requests, max_blocks], pages; any behind the window, which is not read


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's requests, their new tokens one after the other."""

    positions: torch.Tensor  # int64 [num_tokens], each token's position in its request
    slot_mapping: torch.Tensor  # int64 [num_tokens], block x block_size + offset
    cu_seqlens_q: torch.Tensor  # int32 [num_requests + 1]
    seq_lens: torch.Tensor  # int32 [num_requests], cached tokens, the new ones included
    block_tables: torch.Tensor  # int32 [num_requests, max_blocks]
    rows: torch.Tensor | None = None  # int64 [num_requests], the requests' rows, for models that keep things by row
    num_decodes: int = 0  # so many of the first requests have one new token each; 0: unknown
    adapters: ops.TokenSlots | None = None  # each token's slot of an adapter; None: no token has one
    windows: WindowTables | None = None  # None: layers of all kinds have the same blocks
    outputs: ops.OutputTokens | None = None  # tokens whose last hidden states are read; None: all

    def output_rows(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, width] -> the rows of the outputs, [num_outputs, width]."""
        return x if self.outputs is None else x[self.outputs.lines]


class PagedAttention(torch.nn.Module):
    """Writes the new keys and values into the layer's blocks, then attends to all of them."""

    def __init__(
        self, head_dim: int, *, scale: float | None = None, window: int | None = None, softcap: float | None = None
    ) -> None:
        super().__init__()
        self.scale = head_dim**-0.5 if scale is None else scale
        self.window = window
        self.softcap = softcap
        self._kv_cache: ops.KVCache | None = None

    def bind(self, kv_cache: ops.KVCache) -> None:
        """Give the layer its pool of blocks."""
        self._kv_cache = kv_cache

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        batch: AttentionBatch,
        position_bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend with query [num_tokens, num_heads, head_dim]; key and value [num_tokens, num_kv_heads, head_dim].

        position_bias [num_heads, num_distances], if any, is added to the scores by distance; sinks [num_heads] are the
        scores of one more token for each head, whose value is zero. Both are float32.
        """
        assert self._kv_cache is not None, "bind the KV cache first"
        tables = batch if self.window is None or batch.windows is None else batch.windows
        ops.write_kv(key, value, self._kv_cache, tables.slot_mapping)
        return ops.paged_attention(
            query,
            self._kv_cache,
            tables.block_tables,
            batch.cu_seqlens_q,
            batch.seq_lens,
            self.scale,
            self.window,
            self.softcap,
            position_bias,
            sinks,
        )
