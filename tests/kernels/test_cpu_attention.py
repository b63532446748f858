import dataclasses
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer_kernels import ops, reference
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.kv_cache import allocate_kv_cache
from support.kernels.attention_batches import Shape, make_batch, spoil_unseen

SHAPES = [
    Shape(),
    Shape(block_size=8),
    Shape(block_size=24, head_dim=40),
    Shape(block_size=32, head_dim=8, num_heads=4, num_kv_heads=4),
    Shape(block_size=256, head_dim=24, num_heads=6, num_kv_heads=3),
    Shape(head_dim=128, num_heads=8, num_kv_heads=2),
    Shape(head_dim=256, num_heads=4, num_kv_heads=1, window=30),
    Shape(head_dim=72, num_heads=7, num_kv_heads=1),
    Shape(head_dim=80, num_heads=60, num_kv_heads=1),
    Shape(head_dim=7, num_heads=2, num_kv_heads=2),
    Shape(window=1),
    Shape(window=21, block_size=8),
    Shape(window=100),
    Shape(softcap=2.0),
    Shape(softcap=30.0, window=40, scale=1.0),
    Shape(num_heads=6, num_kv_heads=6, head_dim=16, scale=1.0, num_distances=300),
    Shape(num_distances=90, window=100, block_size=8),
    Shape(num_distances=1),
    Shape(num_heads=8, num_kv_heads=2, has_sinks=True),
    Shape(num_heads=8, num_kv_heads=1, head_dim=32, window=30, has_sinks=True),
]
MIXED_LENGTHS = [1, 17, 300, 64, 65, 130]
MIXED_SPANS = [(0, 0, 1), (1, 0, 17), (2, 299, 300), (3, 30, 64), (4, 64, 65), (5, 0, 130)]
TOLERANCES = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.02, "rtol": 0.02}}


@pytest.fixture(params=["own", "int8"])
def cache_dtype(request, dtype) -> torch.dtype:
    return torch.int8 if request.param == "int8" else dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mixed_batch_equals_the_reference(kernels, dtype, cache_dtype, shape):
    batch = make_batch(shape, MIXED_LENGTHS, dtype, cache_dtype=cache_dtype)
    for actual, expected in zip(batch.attend(kernels, MIXED_SPANS), batch.attend(reference, MIXED_SPANS), strict=True):
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("shape", [SHAPES[i] for i in (0, 2, 4, 8, 9, 11, 14, 15, 16, 18)], ids=str)
def test_every_instruction_set_equals_the_reference(isa_library, dtype, cache_dtype, shape):
    kernels = CpuKernels(isa_library.handle, dtype)
    batch = make_batch(shape, MIXED_LENGTHS, dtype, cache_dtype=cache_dtype)
    for actual, expected in zip(batch.attend(kernels, MIXED_SPANS), batch.attend(reference, MIXED_SPANS), strict=True):
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("group", range(1, 10))
def test_every_size_of_query_group_equals_the_reference(kernels, dtype, group):
    batch = make_batch(Shape(num_heads=2 * group, num_kv_heads=2, head_dim=16), [90, 33], dtype)
    spans = [(0, 60, 90), (1, 32, 33)]
    for actual, expected in zip(batch.attend(kernels, spans), batch.attend(reference, spans), strict=True):
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_attends_alike_to_the_bit_alone_in_a_batch_in_any_chunks_and_on_any_number_of_threads(
    kernels, dtype, cache_dtype, shape
):
    batch = make_batch(shape, [203, 77], dtype, cache_dtype=cache_dtype)
    [whole] = batch.attend(kernels, [(0, 0, 203)])
    cuts = [0, 5, 6, 70, 128, 129, 202, 203]
    for first, end in itertools.pairwise(cuts):
        torch.set_num_threads(1)
        [alone] = batch.attend(kernels, [(0, first, end)])
        torch.set_num_threads(2)
        _, together, _ = batch.attend(kernels, [(1, 0, 77), (0, first, end), (1, 76, 77)])
        assert torch.equal(alone, whole[first:end])
        assert torch.equal(together, whole[first:end])


@pytest.mark.parametrize(
    "shape", [Shape(has_sinks=True), Shape(block_size=24, window=600), Shape(block_size=128)], ids=str
)
def test_few_long_contexts_are_shared_by_any_number_of_threads_without_a_change_of_a_bit(
    isa_library, dtype, cache_dtype, shape
):
    kernels = CpuKernels(isa_library.handle, dtype)
    batch = make_batch(shape, [1100, 530], dtype, cache_dtype=cache_dtype)
    torch.set_num_threads(1)
    expected = batch.attend(reference, [(0, 1090, 1100), (1, 529, 530)])
    alone = [batch.attend(kernels, [span])[0] for span in [(0, 1090, 1100), (1, 529, 530)]]
    for result, right in zip(alone, expected, strict=True):
        torch.testing.assert_close(result, right, **TOLERANCES[dtype])
    for num_threads in (2, 5, 16):
        torch.set_num_threads(num_threads)
        for _ in range(3):  # which thread is the last one differs
            together = batch.attend(kernels, [(0, 1090, 1100), (1, 529, 530)])
            assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
        assert torch.equal(batch.attend(kernels, [(0, 1099, 1100)])[0], alone[0][9:])


def test_rounding_to_eight_bits_changes_attention_by_little(kernels, dtype):
    exact, rounded = (make_batch(Shape(), [200], dtype, cache_dtype=kept) for kept in (dtype, torch.int8))
    [expected], [actual] = exact.attend(reference, [(0, 100, 200)]), rounded.attend(kernels, [(0, 100, 200)])
    assert 1e-4 < (actual - expected).abs().mean() < 0.02


def test_a_key_that_is_not_a_number_shows_in_eight_bits_too(kernels, dtype):
    batch = make_batch(Shape(), [20], dtype, cache_dtype=torch.int8)
    broken = torch.full((1, 3, 64), float("nan"), dtype=dtype)
    slot = batch.block_tables[0, 1:2].long() * 16 + 2  # the token at position 18
    kernels.write_kv(broken, broken, batch.kv_cache, slot)
    [result] = batch.attend(kernels, [(0, 0, 20)])
    assert not result[:18].isnan().any()
    assert result[18:].isnan().all()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_batch_of_any_shape_equals_the_reference(library, data):
    kv_heads, group = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    shape = Shape(
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=data.draw(st.integers(1, 17)) * 8,
        block_size=data.draw(st.sampled_from([8, 16, 32, 40])),
        window=data.draw(st.none() | st.integers(1, 100)),
        softcap=data.draw(st.none() | st.floats(0.5, 60)),
        num_distances=data.draw(st.none() | st.integers(1, 200)),
        has_sinks=data.draw(st.booleans()),
    )
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=4))
    spans = [(i, data.draw(st.integers(0, length)), length) for i, length in enumerate(lengths)]
    batch = make_batch(shape, lengths, torch.float32)
    actual = batch.attend(CpuKernels(library.handle, torch.float32), spans)
    for result, expected in zip(actual, batch.attend(reference, spans), strict=True):
        torch.testing.assert_close(result, expected, **TOLERANCES[torch.float32])


def test_scores_far_apart_and_equal_scores_are_weighed_exactly(library):
    kernels = CpuKernels(library.handle, torch.float32)
    batch = make_batch(Shape(scale=300.0), [100], torch.float32)
    [actual], [expected] = batch.attend(kernels, [(0, 0, 100)]), batch.attend(reference, [(0, 0, 100)])
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-3)
    batch = make_batch(Shape(scale=0.0), [100], torch.float32)
    [actual], [expected] = batch.attend(kernels, [(0, 0, 100)]), batch.attend(reference, [(0, 0, 100)])
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


def test_a_query_that_is_not_a_number_spoils_no_other(kernels, dtype):
    batch = make_batch(Shape(), [40, 50], dtype)
    clean = batch.attend(kernels, [(0, 0, 40), (1, 49, 50)])
    batch.queries[0][7, 0] = float("nan")
    spoilt = batch.attend(kernels, [(0, 0, 40), (1, 49, 50)])
    assert spoilt[0][7, 0].isnan().all()
    assert torch.equal(spoilt[0][8:], clean[0][8:])
    assert torch.equal(spoilt[1], clean[1])


HIDING_SHAPES = [
    Shape(num_heads=4, num_kv_heads=2, head_dim=16),
    Shape(num_heads=2, num_kv_heads=2, head_dim=24, block_size=8, window=5),
    Shape(num_heads=3, num_kv_heads=1, head_dim=80, block_size=24, window=70, softcap=20.0),
    Shape(num_heads=2, num_kv_heads=1, head_dim=64, block_size=128),
]


def check_that_unseen_places_do_not_count(kernels, dtype, cache_dtype, shape, seed):
    chance = random.Random(seed)
    lengths = [chance.randint(1, 300) for _ in range(3)]
    spans = [(i, chance.randrange(length), length) for i, length in enumerate(lengths)]
    batch = make_batch(shape, lengths, dtype, seed, cache_dtype=cache_dtype)
    clean = batch.attend(kernels, spans)
    unspoilt = spoil_unseen(batch, spans, chance)
    for i, result in enumerate(batch.attend(kernels, spans)):
        assert torch.equal(result[unspoilt[i]], clean[i][unspoilt[i]])


@pytest.mark.parametrize("shape", HIDING_SHAPES, ids=str)
def test_what_a_token_does_not_see_never_counts_whatever_it_holds(isa_library, dtype, cache_dtype, shape):
    for seed in range(4):
        check_that_unseen_places_do_not_count(CpuKernels(isa_library.handle, dtype), dtype, cache_dtype, shape, seed)


@pytest.mark.parametrize("shape", HIDING_SHAPES, ids=str)
def test_in_the_reference_too_what_a_token_does_not_see_never_counts(dtype, cache_dtype, shape):
    for seed in range(3):
        check_that_unseen_places_do_not_count(reference, dtype, cache_dtype, shape, seed)


def test_a_batch_without_requests_gives_nothing(kernels, dtype):
    cache = allocate_kv_cache(2, 16, 3, 64, dtype, torch.device("cpu"))
    out = kernels.paged_attention(
        torch.empty(0, 9, 64, dtype=dtype), cache, torch.empty(0, 0), torch.zeros(1), torch.empty(0), 1.0
    )
    assert out.shape == (0, 9, 64)


@pytest.mark.parametrize("shape", SHAPES[:10], ids=str)
def test_keys_and_values_are_written_where_the_reference_writes_them(isa_library, dtype, cache_dtype, shape):
    kernels = CpuKernels(isa_library.handle, dtype)
    ours, theirs = (
        allocate_kv_cache(9, shape.block_size, shape.num_kv_heads, shape.head_dim, cache_dtype, torch.device("cpu"))
        for _ in range(2)
    )
    slot_mapping = torch.randperm(9 * shape.block_size)[:31]
    width = shape.num_kv_heads * shape.head_dim
    both = torch.randn(31, 3 + 2 * width).to(dtype)  # a strided view, as the split of a stacked product is
    both[5] = 0
    key, value = (part.unflatten(-1, (-1, shape.head_dim)) for part in both[:, 3:].split([width, width], -1))
    kernels.write_kv(key, value, ours, slot_mapping)
    reference.write_kv(key, value, theirs, slot_mapping)
    assert all(torch.equal(one, other) for one, other in zip(ours.tensors, theirs.tensors, strict=True))
    kernels.write_kv(key[:0], value[:0], ours, slot_mapping[:0])
    assert all(torch.equal(one, other) for one, other in zip(ours.tensors, theirs.tensors, strict=True))


def test_copied_blocks_give_the_same_attention(kernels, dtype, cache_dtype):
    batch = make_batch(Shape(), [50], dtype, cache_dtype=cache_dtype)
    [expected] = batch.attend(kernels, [(0, 0, 50)])
    source = batch.kv_cache
    target = allocate_kv_cache(source.num_blocks, 16, 3, 64, cache_dtype, torch.device("cpu"))
    ops.copy_blocks(source, target, batch.block_tables[0].long(), batch.block_tables[0].long())
    [actual] = dataclasses.replace(batch, kv_cache=target).attend(kernels, [(0, 0, 50)])
    assert torch.equal(actual, expected)
