"""Batch of a step of a model that drafts, in its own KV blocks."""

import numpy as np
import numpy.typing as npt
import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.engine.drafting.draft_rows import DraftRows


def attention_batch(
    table: DraftRows, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> AttentionBatch:
    """Lay out a step of `counts` tokens of each of the rows, from a position on; those with one token come first."""
    ends = (starts + counts).astype(np.int32)
    cu_seqlens_q = np.zeros(len(rows) + 1, np.int32)
    counts.cumsum(out=cu_seqlens_q[1:])
    positions = np.arange(cu_seqlens_q[-1]) + np.repeat(ends - cu_seqlens_q[1:], counts)
    blocks, block_size = table.block_tables, table.block_size
    slots = blocks[np.repeat(rows, counts), positions // block_size] * np.int64(block_size) + positions % block_size
    num_blocks = -(-int(ends.max()) // block_size)
    return AttentionBatch(
        positions=torch.from_numpy(positions.astype(np.int64)),
        slot_mapping=torch.from_numpy(slots),
        cu_seqlens_q=torch.from_numpy(cu_seqlens_q),
        seq_lens=torch.from_numpy(ends),
        block_tables=torch.from_numpy(np.ascontiguousarray(blocks[rows, :num_blocks])),
        rows=None,
        num_decodes=int(np.count_nonzero(counts == 1)),
    )
