"""Prefill attention against the reference, for prompts, chunks and single tokens side by side."""

import random

import pytest
import torch

from rayinfer_kernels.gpu.prefill_attention import prefill_attention
from support.kernels.paged_batches import BF16, F8, F16, F32, TYPES, assert_near, make_batch

REQUESTS = {  # (context, new tokens) each
    "mixed": [(70, 6), (0, 0), (40, 1)],
    "prompts": [(20, 20), (1, 1)],
    "long": [(4096, 2), (3, 3)],
}


def batch_of(requests, device, *, group=4, head_dim=64, block_size=16, types=(F32, F32), strided=False):
    return make_batch(
        requests,
        device,
        num_kv_heads=2 if group <= 2 and max(requests)[0] < 4096 else 1,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        types=types,
        strided=strided,
    )


def attend(batch, **settings):
    lengths = (batch.cu_seqlens_q, batch.seq_lens)
    return prefill_attention(batch.query, batch.cache, batch.block_tables, *lengths, batch.scale, **settings)


@pytest.mark.axes(
    head_dim=[64, 80, 96, 128, 256],
    group=[1, 2, 3, 5, 8, 16],
    block_size=[16, 32, 64],
    types=TYPES,
    requests=list(REQUESTS),
    window_and_softcap=[(None, None), (20, None), (None, 10.0)],
    strided=[False, True],
    has_sinks=[False, True],
    knows_longest=[False, True],
)
def test_it_equals_the_reference(case, device):
    case = dict(case)
    requests, (window, softcap) = REQUESTS[case.pop("requests")], case.pop("window_and_softcap")
    longest = max(new for _, new in requests) if case.pop("knows_longest") else None
    has_sinks = case.pop("has_sinks")
    batch = batch_of(requests, device, **case)
    sinks = batch.sinks() if has_sinks else None
    actual = attend(batch, window=window, softcap=softcap, max_query=longest, sinks=sinks)
    assert_near(actual, batch.expected(window, softcap, sinks), case["types"][0])
    assert actual.is_contiguous()


def test_a_head_of_keys_serves_any_number_of_query_heads_to_16(device):
    for group in range(1, 17):
        batch = batch_of([(9, 3), (0, 0)], device, group=group)
        assert_near(attend(batch), batch.expected(), F32)


def test_a_prompt_of_thousands_is_read_to_its_end(device):
    batch = batch_of([(4096, 4096)], device, group=1, types=(F16, F16), block_size=64)
    assert_near(attend(batch), batch.expected(), F16)


@pytest.mark.parametrize("max_query", [1, 3])
def test_few_tokens_of_each_request_are_computed_in_small_tiles(device, max_query):
    batch = batch_of([(50, max_query), (200, max_query), (max_query, max_query)], device, group=5)
    assert_near(attend(batch, max_query=max_query), batch.expected(), F32)


def test_however_a_prompt_is_cut_the_same_is_computed(device):
    whole = batch_of([(150, 150)], device, group=1)
    cut = prefill_attention(
        *(whole.query[100:], whole.cache, whole.block_tables, torch.tensor([0, 50], dtype=torch.int32, device=device)),
        *(whole.seq_lens, whole.scale),
    )
    assert_near(attend(whole)[100:], cut, F32)


@pytest.mark.parametrize("types", [(F32, F32), (BF16, BF16), (F16, F8)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (9, None), (None, 10.0)])
def test_what_a_token_does_not_see_never_counts_whatever_it_holds(device, types, window, softcap):
    batch = batch_of([(40, 40), (37, 3)], device, group=2, head_dim=32, types=types)
    clean = attend(batch, window=window, softcap=softcap)
    chance = random.Random(str((types, window)))
    is_row_clean = torch.ones(len(clean), dtype=torch.bool)
    for i, first_row, first, end in ((0, 0, 0, 40), (1, 40, 34, 37)):
        for position in chance.sample(range(end // 2, end), 2):
            block, offset = int(batch.block_tables[i, position // 16]), position % 16
            bad = float("nan") if types[1] is F8 else chance.choice([float("nan"), float("inf"), float("-inf")])
            tensor = chance.choice(batch.cache.tensors)
            tensor[block, :, offset, chance.randrange(32)] = torch.tensor(bad).to(types[1])
            for row in range(max(first, position), min(end, position + (window or end))):
                is_row_clean[first_row + row - first] = False
    spoilt = attend(batch, window=window, softcap=softcap)
    assert is_row_clean.sum() > 15
    assert torch.equal(spoilt[is_row_clean], clean[is_row_clean])


@pytest.mark.parametrize("types", [(F32, F32), (BF16, BF16), (BF16, F8)], ids=str)
@pytest.mark.parametrize("window", [9, 40])
@pytest.mark.parametrize("block_size", [16, 64])
def test_what_lies_in_front_of_the_windows_of_all_tokens_never_counts(device, types, window, block_size):
    """Blocks there may have been given back, and hold another request's tokens, or nothing yet."""
    requests = [(150, 3), (80, 1), (30, 30)]
    batch = batch_of(requests, device, block_size=block_size, types=types)
    clean = attend(batch, window=window)
    assert_near(clean, batch.expected(window), types[0])
    batch.spoil([range(context - new + 1 - window) for context, new in requests])
    assert torch.equal(attend(batch, window=window), clean)


def test_a_request_without_tokens_of_its_own_changes_nothing(device):
    with_idle, without = batch_of([(0, 0), (60, 20), (0, 0)], device), batch_of([(60, 20)], device)
    assert torch.equal(attend(with_idle), attend(without))


def test_tokens_without_a_context_get_zeros(device):
    batch = batch_of([(30, 30)], device)
    batch.seq_lens.zero_()
    assert not attend(batch).any()


def test_no_tokens_give_nothing(device):
    batch = batch_of([(0, 0)], device)
    assert attend(batch).shape == (0, 4, 64)


@pytest.mark.gpu
def test_a_captured_graph_follows_what_its_buffers_hold(device):
    batch = batch_of([(300, 20), (40, 10)], device, types=(BF16, BF16))
    attend(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(batch)
    for ends in ([20, 30], [1, 30]):
        batch.cu_seqlens_q[1:].copy_(torch.tensor(ends))
        batch.seq_lens.copy_(torch.tensor([300, 40]))
        graph.replay()
        assert_near(out, batch.expected(), BF16)
