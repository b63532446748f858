"""Cross-attention blocks of an encoder-decoder's sources: fixed ones for each row of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayinfer.attention.paged_attention import AttentionBatch

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class CrossAttentionBatch:
    """One step's tokens, each with the source that it reads: a token attends to all of it, whatever its position."""

    cu_seqlens_q: torch.Tensor  # int32 [num_tokens + 1]
    lengths: torch.Tensor  # int32 [num_tokens], tokens of the source
    block_tables: torch.Tensor  # int32 [num_tokens, blocks_per_row]


class CrossAttentionBlocks:
    """The fixed blocks of every row, and how many tokens the source in them has."""

    def __init__(self, num_rows: int, max_source_tokens: int, device: torch.device) -> None:
        self.blocks_per_row = -(-max_source_tokens // BLOCK_SIZE)
        self.num_blocks = num_rows * self.blocks_per_row
        blocks = torch.arange(self.num_blocks, dtype=torch.int32, device=device)
        self._block_tables = blocks.view(num_rows, self.blocks_per_row)
        self._lengths = torch.ones(num_rows, dtype=torch.int32, device=device)  # a row without a source reads zeros

    def fill(self, rows: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Give rows new sources of so many tokens; returns these tokens' slots, one source after the other."""
        device = self._lengths.device
        self._lengths[torch.tensor(rows, device=device)] = torch.tensor(lengths, dtype=torch.int32, device=device)
        starts = (row * self.blocks_per_row * BLOCK_SIZE for row in rows)
        spans = [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return torch.cat(spans).to(device)

    def of(self, batch: AttentionBatch) -> CrossAttentionBatch:
        """Describe the source that each token of a step reads."""
        assert batch.rows is not None, "a batch with sources needs their rows"
        num_tokens = len(batch.positions)
        rows = torch.repeat_interleave(batch.rows, batch.cu_seqlens_q.diff(), output_size=num_tokens)
        return CrossAttentionBatch(
            cu_seqlens_q=torch.arange(num_tokens + 1, dtype=torch.int32, device=rows.device),
            lengths=self._lengths[rows],
            block_tables=self._block_tables[rows],
        )
