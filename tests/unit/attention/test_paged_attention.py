import itertools

import pytest
import torch
import torch.nn.functional as F

from rayinfer.attention.paged_attention import AttentionBatch, PagedAttention
from rayinfer_kernels import ops

BLOCK, HEADS, KV_HEADS, WIDTH = 8, 4, 2, 16
CPU = torch.device("cpu")


def attend(attention, blocks, start, query, key, value):
    """One request's tokens from position `start` on, whose cache lies in `blocks`."""
    positions = torch.arange(start, start + len(query))
    table = torch.tensor(blocks)
    batch = AttentionBatch(
        positions=positions,
        slot_mapping=table[positions // BLOCK] * BLOCK + positions % BLOCK,
        cu_seqlens_q=torch.tensor([0, len(query)], dtype=torch.int32),
        seq_lens=torch.tensor([start + len(query)], dtype=torch.int32),
        block_tables=table[None].to(torch.int32),
    )
    return attention(query, key, value, batch)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_tokens_attend_to_all_before_them_wherever_their_blocks_lie(scale):
    noise = torch.Generator().manual_seed(3)
    query = torch.randn(30, HEADS, WIDTH, generator=noise)
    key, value = torch.randn(2, 30, KV_HEADS, WIDTH, generator=noise)
    attention = PagedAttention(WIDTH, scale=scale)
    attention.bind(ops.allocate_kv_cache(9, BLOCK, KV_HEADS, WIDTH, torch.float32, CPU))
    blocks = [7, 2, 5, 0]
    cuts = [0, 1, 12, 13, 30]
    got = torch.cat(
        [
            attend(attention, blocks, start, query[start:end], key[start:end], value[start:end])
            for start, end in itertools.pairwise(cuts)
        ]
    )
    wanted = F.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (query, key, value)), is_causal=True, scale=scale, enable_gqa=True
    ).transpose(0, 1)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_a_layer_without_a_cache_is_refused():
    tokens = torch.zeros(1, HEADS, WIDTH)
    with pytest.raises(AssertionError, match="bind the KV cache"):
        attend(PagedAttention(WIDTH), [0], 0, tokens, tokens, tokens)
