"""Decode attention against the reference, for any split of the context."""

import pytest
import torch

from rayinfer_kernels.gpu.decode_attention import decode_attention
from support.kernels.paged_batches import BF16, F8, F32, TYPES, assert_near, make_batch

CONTEXTS = {"ragged": (70, 0, 1), "full-pages": (192, 64), "long": (3, 0, 4096)}


def batch_of(contexts, device, *, group=4, head_dim=64, block_size=16, types=(F32, F32), strided=False):
    return make_batch(
        [(context, 1) for context in contexts],
        device,
        num_kv_heads=2 if group <= 2 and max(contexts) < 4096 else 1,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        types=types,
        strided=strided,
    )


def attend(batch, rows=slice(None), **settings):
    return decode_attention(
        *(batch.query[rows], batch.cache, batch.block_tables[rows], batch.seq_lens[rows], batch.scale),
        **settings,
    )


@pytest.mark.axes(
    head_dim=[64, 80, 96, 128, 256],
    group=[1, 2, 3, 5, 8, 16],
    block_size=[16, 32, 64],
    types=TYPES,
    contexts=list(CONTEXTS),
    window_and_softcap=[(None, None), (48, 10.0)],
    num_splits=[None, 1, 4],
    strided=[False, True],
    has_sinks=[False, True],
)
def test_it_equals_the_reference(case, device):
    case = dict(case)
    contexts, num_splits = CONTEXTS[case.pop("contexts")], case.pop("num_splits")
    (window, softcap), has_sinks = case.pop("window_and_softcap"), case.pop("has_sinks")
    batch = batch_of(contexts, device, **case)
    sinks = batch.sinks() if has_sinks else None
    actual = attend(batch, window=window, softcap=softcap, num_splits=num_splits, sinks=sinks)
    assert_near(actual, batch.expected(window, softcap, sinks), case["types"][0])
    assert actual.is_contiguous()
    assert not actual[batch.seq_lens == 0].any()


def test_a_head_of_keys_serves_any_number_of_query_heads_to_16(device):
    for group in range(1, 17):
        batch = batch_of((20, 0), device, group=group)
        assert_near(attend(batch, num_splits=1), batch.expected(), F32)


@pytest.mark.parametrize("window", [1, 16, 299, 5000])
def test_a_window_ends_where_the_reference_says(device, window):
    batch = batch_of([300, 16, 1], device)
    assert_near(attend(batch, window=window, num_splits=4), batch.expected(window), F32)


@pytest.mark.parametrize("num_splits", [None, 1, 4])
@pytest.mark.parametrize("types", [(F32, F32), (BF16, BF16), (BF16, F8)], ids=str)
@pytest.mark.parametrize("window", [40, 200])
@pytest.mark.parametrize("block_size", [16, 64])
def test_what_lies_in_front_of_a_window_never_counts_whatever_it_holds(device, num_splits, types, window, block_size):
    """Blocks there may have been given back, and hold another request's tokens, or nothing yet."""
    batch = batch_of([300, 70, 25], device, block_size=block_size, types=types)
    settings = {"window": window, "num_splits": num_splits}
    clean = attend(batch, **settings)
    assert_near(clean, batch.expected(window), types[0])
    batch.spoil([range(int(context) - window) for context in batch.seq_lens])
    assert torch.equal(attend(batch, **settings), clean)


@pytest.mark.parametrize("types", [(F32, F32), (BF16, F8)], ids=str)
def test_with_given_splits_a_row_gets_the_same_bits_in_any_batch(device, types):
    batch = batch_of([200, 0, 300, 70], device, types=types)
    together = attend(batch, num_splits=4)
    for row in range(4):
        assert torch.equal(attend(batch, slice(row, row + 1), num_splits=4), together[row : row + 1])
    assert torch.equal(attend(batch, slice(2, 3), num_splits=4, max_context=10**6), together[2:3])


def test_a_batch_that_fills_the_processor_is_read_in_longer_parts(device, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *sizes, **kind: torch.full(*sizes, torch.nan, **kind))
    batch = batch_of([1100, 5, 513, 512], device, group=2, block_size=64)
    actual = attend(batch, max_context=8192, num_multiprocessors=1)
    assert_near(actual, batch.expected(), F32)
    assert not torch.equal(actual, attend(batch, num_splits=4))  # four parts too, but shorter ones


def test_blocks_may_hold_any_number_of_tokens(device):
    batch = batch_of([50, 130], device, block_size=24)
    assert_near(attend(batch), batch.expected(), F32)


def test_a_query_that_is_not_a_number_spoils_no_other(device):
    batch = batch_of([40, 90], device)
    clean = attend(batch, num_splits=2)
    batch.query[0, 3] = float("nan")
    spoilt = attend(batch, num_splits=2)
    assert spoilt[0, 3].isnan().all()
    spoilt[0, 3] = clean[0, 3]
    assert torch.equal(spoilt, clean)


def test_no_requests_give_nothing(device):
    assert attend(batch_of([5], device), slice(0, 0)).shape == (0, 4, 64)


@pytest.mark.parametrize(
    ("query", "settings"),
    [
        (torch.zeros(1, 4, 32), {}),
        (torch.zeros(1, 0, 64), {}),
        (torch.zeros(1, 4, 64).bfloat16(), {}),
        (torch.zeros(1, 4, 64), {"num_splits": 3}),
    ],
)
def test_what_does_not_fit_the_cache_is_refused(device, query, settings):
    batch = batch_of([5], device)
    with pytest.raises(ValueError, match=r"cache|power of two"):
        decode_attention(query.to(device), batch.cache, batch.block_tables, batch.seq_lens, batch.scale, **settings)


@pytest.mark.gpu
def test_a_captured_graph_follows_what_its_buffers_hold(device):
    batch = batch_of([300, 40, 7], device, types=(BF16, BF16))
    lengths = batch.seq_lens.clone()
    attend(batch, max_context=512)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(batch, max_context=512)
    for scale in (1, 0, 2):
        batch.seq_lens.copy_(lengths // scale if scale else torch.zeros_like(lengths))
        graph.replay()
        assert_near(out, batch.expected(), BF16)
