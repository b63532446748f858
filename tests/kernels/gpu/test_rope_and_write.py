"""Norms, rotation and the cache's new entries against the reference's, computed in float32."""

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu.language import IS_INTERPRETED
from rayinfer_kernels.gpu.paged_cache import PagedKVCache, allocate_paged_cache
from rayinfer_kernels.gpu.rope_and_write import rope_and_write, write_kv
from rayinfer_kernels.gpu.tuning import rope_tuning
from support.kernels.paged_batches import BF16, F8, F16, F32, TYPES, as_stored, assert_near
from support.kernels.pairwise import Void

NUM_BLOCKS, NUM_POSITIONS, EPS = 4, 300, 1e-6
HEAD_DIMS, BLOCK_SIZES, NUM_TOKENS = [64, 80, 96, 128, 256], [16, 32, 64], [2, Void(0), 1, 19]


def tuning_of(num_tokens):
    """Let programs take 16 tokens each from 17 on, not only from 513: the interpreter would take long to get there."""
    return rope_tuning(32 * num_tokens)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_slots(num_tokens, num_slots):
    """Anywhere in the pool, but for one token in four."""
    slot_mapping = torch.randperm(num_slots, generator=torch.Generator().manual_seed(1))[:num_tokens]
    slot_mapping[1::4] = -1
    return slot_mapping


def angles(rotary_dim, dtype, device):
    """As they are kept: both halves of a row are alike, but a kernel need not know it."""
    table = torch.outer(torch.arange(float(NUM_POSITIONS)), random(rotary_dim, seed=2).abs())
    return table.cos().to(device, dtype), table.sin().to(device, dtype)


def expected(qkv, num_heads, num_kv_heads, head_dim, tables, positions, norms, unit_offset):
    """Queries, keys and values in float32."""
    widths = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
    *turning, value = (part.unflatten(-1, (-1, head_dim)) for part in qkv.float().split(widths, -1))
    cos, sin = (table.float()[positions] for table in tables)
    turned = []
    for heads, norm in zip(turning, norms, strict=True):
        if norm is not None:
            heads = reference.rms_norm(heads, norm.float(), EPS, unit_offset)
        width = cos.shape[1]
        first = reference.rotary_embedding(heads[..., :width], cos, sin)
        turned.append(torch.cat((first, heads[..., width:]), -1))
    return *turned, value


def check_cache(cache, before, key, value, slot_mapping):
    """Check that tokens with slot_mapping are in the cache, rounded to its type, and that nothing else has changed."""
    wanted = PagedKVCache(*(tensor.float() for tensor in before))
    wanted.write(key, value, slot_mapping)
    unit = 1e-5 if cache.key.dtype is F32 else torch.finfo(cache.key.dtype).eps
    for now, then in zip(cache.tensors, wanted.tensors, strict=True):
        torch.testing.assert_close(now.float(), as_stored(then, cache.key.dtype), rtol=unit, atol=1e-5)


def make_cache(num_kv_heads, head_dim, block_size, dtype, device):
    """A cache that holds something already."""
    cache = allocate_paged_cache(NUM_BLOCKS, block_size, num_kv_heads, head_dim, dtype, device)
    for tensor in cache.tensors:
        tensor.copy_(torch.ones(1).to(dtype))
    return cache, [tensor.clone() for tensor in cache.tensors]


@pytest.mark.axes(
    head_dim=HEAD_DIMS,
    heads=[(1, 1), (6, 2), (16, 1)],
    block_size=BLOCK_SIZES,
    types=TYPES,
    turning=[1.0, 0.5, 0.25],
    norm=[None, "plain", "unit_offset"],
    num_tokens=NUM_TOKENS,
    strided=[False, True],
)
def test_it_equals_the_reference(case, device):
    (num_heads, num_kv_heads), head_dim = case["heads"], case["head_dim"]
    dtype, cache_dtype = case["types"]
    cache, before = make_cache(num_kv_heads, head_dim, case["block_size"], cache_dtype, device)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    qkv = (3 * random(case["num_tokens"], width + 32)).to(device, dtype)
    qkv = qkv[:, 32:] if case["strided"] else qkv[:, 32:].contiguous()
    tables = angles(int(head_dim * case["turning"]), dtype, device)
    norms = [random(head_dim, seed=seed).to(device, dtype) for seed in (3, 4)] if case["norm"] else [None, None]
    positions = torch.arange(case["num_tokens"], device=device) * 50 % NUM_POSITIONS
    slot_mapping = make_slots(case["num_tokens"], NUM_BLOCKS * case["block_size"]).to(device)
    unit_offset = case["norm"] == "unit_offset"
    query = rope_and_write(
        *(qkv, num_heads, num_kv_heads, *tables, positions, slot_mapping, cache, *norms, EPS),
        unit_offset=unit_offset,
        tuning=tuning_of(len(qkv)),
    )
    wanted, key, value = expected(qkv, num_heads, num_kv_heads, head_dim, tables, positions, norms, unit_offset)
    assert_near(query, wanted, dtype)
    assert query.is_contiguous()
    check_cache(cache, before, key, value, slot_mapping)


def test_many_tokens_are_taken_several_at_once(device):
    num_tokens, num_heads, head_dim = 515, 1, 64
    cache = allocate_paged_cache(40, 16, 1, head_dim, F32, device)
    before = [tensor.clone() for tensor in cache.tensors]
    qkv = random(num_tokens, 3 * head_dim).to(device)
    tables, positions = angles(head_dim, F32, device), torch.arange(num_tokens, device=device) % NUM_POSITIONS
    slot_mapping = make_slots(num_tokens, 640).to(device)
    query = rope_and_write(qkv, num_heads, 1, *tables, positions, slot_mapping, cache)
    wanted, key, value = expected(qkv, num_heads, 1, head_dim, tables, positions, [None, None], False)
    assert_near(query, wanted, F32)
    check_cache(cache, before, key, value, slot_mapping)


@pytest.mark.axes(
    head_dim=HEAD_DIMS,
    num_kv_heads=[1, 3],
    block_size=[*BLOCK_SIZES, 24],
    types=TYPES,
    num_tokens=NUM_TOKENS,
    strided=[False, True],
)
def test_keys_and_values_are_written_alone(case, device):
    num_tokens, num_kv_heads, head_dim = case["num_tokens"], case["num_kv_heads"], case["head_dim"]
    dtype, cache_dtype = case["types"]
    cache, before = make_cache(num_kv_heads, head_dim, case["block_size"], cache_dtype, device)
    both = random(num_tokens, 2 * num_kv_heads, 2 * head_dim).to(device, dtype)
    key, value = both[:, ::2, :head_dim], both[:, 1::2, head_dim:]  # heads with strides of their own
    if not case["strided"]:
        key, value = key.contiguous(), value.contiguous()
    slot_mapping = make_slots(num_tokens, NUM_BLOCKS * case["block_size"]).to(device)
    write_kv(key, value, cache, slot_mapping, tuning=tuning_of(num_tokens))
    check_cache(cache, before, key.float(), value.float(), slot_mapping)


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_what_is_too_large_for_eight_bits_becomes_the_largest_number(device, dtype):
    cache, _ = make_cache(1, 64, 16, F8, device)
    row = torch.tensor([1000.0, -1000.0, 448.0, float("inf")]).repeat(16).to(device, dtype)
    tables = (torch.ones(1, 64, device=device, dtype=dtype), torch.zeros(1, 64, device=device, dtype=dtype))
    at, slot_mapping = torch.tensor([0], device=device), torch.tensor([5, 9], device=device)
    write_kv(row[None, None], row[None, None], cache, slot_mapping[:1])
    rope_and_write(row.clamp(max=6e4).repeat(1, 3), 1, 1, *tables, at, slot_mapping[1:], cache)
    for tensor in cache.tensors:
        wanted = torch.tensor([448.0, -448.0, 448.0, 448.0]).repeat(16)
        assert torch.equal(tensor[0, 0, 5].float().cpu(), wanted)
        assert torch.equal(tensor[0, 0, 9].float().cpu(), wanted)


@pytest.mark.gpu  # the interpreter makes a number of it
def test_what_is_no_number_stays_none_in_eight_bits(device):
    cache, _ = make_cache(1, 64, 16, F8, device)
    row = torch.full((1, 1, 64), float("nan"), device=device)
    write_kv(row, row, cache, torch.tensor([5], device=device))
    assert all(tensor[0, 0, 5].float().isnan().all() for tensor in cache.tensors)


@pytest.mark.parametrize(
    ("columns", "rotary_dim", "query_norm"), [(255, 64, None), (256, 66, None), (256, 31, None), (256, 64, True)]
)
def test_what_does_not_fit_together_is_refused(device, columns, rotary_dim, query_norm):
    cache, _ = make_cache(1, 64, 16, F32, device)
    tables, one = angles(rotary_dim, F32, device), torch.zeros(1, dtype=torch.int64, device=device)
    norm = None if query_norm is None else torch.ones(64, device=device)
    with pytest.raises(ValueError, match=r"columns|rotary_dim|norms"):
        rope_and_write(torch.zeros(1, columns, device=device), 2, 1, *tables, one, one, cache, norm)


@pytest.mark.gpu
def test_a_captured_graph_writes_where_its_buffers_say(device):
    assert not IS_INTERPRETED
    cache, before = make_cache(1, 128, 16, BF16, device)
    qkv, tables = random(4, 512).to(device, BF16), angles(128, BF16, device)
    positions, slot_mapping = torch.zeros(4, dtype=torch.int64, device=device), torch.full((4,), -1, device=device)
    rope_and_write(qkv, 2, 1, *tables, positions, slot_mapping, cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        query = rope_and_write(qkv, 2, 1, *tables, positions, slot_mapping, cache)
    positions.copy_(torch.tensor([3, 1, 0, 7]))
    slot_mapping.copy_(torch.tensor([40, -1, 0, 9]))
    graph.replay()
    wanted, key, value = expected(qkv, 2, 1, 128, tables, positions, [None, None], False)
    assert_near(query, wanted, BF16)
    check_cache(cache, before, key, value, slot_mapping)
