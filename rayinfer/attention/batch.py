"""Attention metadata of one step: positions, slot_mapping, sequence bounds and block tables."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's requests, their new tokens one after the other."""

    positions: torch.Tensor  # int64 [num_tokens], each token's place in its request
    slot_mapping: torch.Tensor  # int64 [num_tokens], block x block_size + offset
    cu_seqlens_q: torch.Tensor  # int32 [num_requests + 1]
    seq_lens: torch.Tensor  # int32 [num_requests], cached tokens, the new ones included
    block_tables: torch.Tensor  # int32 [num_requests, max_blocks]
    rows: torch.Tensor | None = None  # int64 [num_requests], the requests' rows, for models that keep things by row
    num_decodes: int = 0  # so many of the first requests have one new token each; 0: unknown
