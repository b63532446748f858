import pytest

from rayinfer_kernels.gpu.tuning import (
    LONGEST_SPLIT_TOKENS,
    MAX_ROUNDS,
    NUM_MULTIPROCESSORS,
    decode_tuning,
    least_split,
    num_splits_for,
    prefill_tuning,
    rope_tuning,
)

SIZES = [1, 2, 3, 7, 8, 31, 64, 200, 512]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
def test_contexts_are_cut_into_parts_by_powers_of_two_and_fewer_for_larger_batches(num_kv_heads):
    for max_context in (1, 64, 100, 4096, 131072):
        numbers = [num_splits_for(size, num_kv_heads, max_context) for size in SIZES]
        assert numbers == sorted(numbers, reverse=True)
        assert all(number in (1, 2, 4, 8, 16, 32, 64) for number in numbers)


def test_one_request_fills_the_processor_and_a_large_batch_is_not_cut_without_need():
    assert num_splits_for(1, 8, 4096) * 8 >= 3 * 132
    assert num_splits_for(256, 8, 1024) == 1
    assert num_splits_for(32, 8, 16384) == 8  # no part is longer than 2,048 tokens
    assert num_splits_for(1, 8, 60) == 1  # there is nothing to cut
    assert num_splits_for(0, 8, 4096) > 0


@pytest.mark.parametrize(
    ("num_requests", "max_context", "num_splits"),
    [(256, 16384, 4), (256, 40960, 8), (256, 131072, 16), (64, 131072, 16), (32, 131072, 32), (1, 131072, 64)],
)
def test_large_batches_with_long_tables_are_cut_little_for_the_one_long_context_in_them(
    num_requests, max_context, num_splits
):
    assert num_splits_for(num_requests, 8, max_context) == num_splits


def test_parts_are_longer_where_requests_alone_fill_the_processor():
    lengths = [least_split(size, 8) for size in (0, 1, 8, 16, 32, 64, 128, 256)]
    assert lengths == [64, 64, 128, 256, 512, 1024, 2048, 2048]
    assert all(length % decode_tuning(4, 64, 1, 2, 64).tile_tokens == 0 for length in (512, 2048))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
@pytest.mark.parametrize("max_context", [1, 4096, 16384, 40960, 131072, 400_000])
def test_programs_are_few_unless_parts_would_keep_a_batch_waiting(num_kv_heads, max_context):
    for size in SIZES:
        num_splits = num_splits_for(size, num_kv_heads, max_context)
        assert max_context <= num_splits * LONGEST_SPLIT_TOKENS
        is_many = num_splits * size * num_kv_heads > MAX_ROUNDS * 4 * NUM_MULTIPROCESSORS
        assert not is_many or num_splits == 1 or max_context > num_splits // 2 * LONGEST_SPLIT_TOKENS


@pytest.mark.parametrize("model_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [24, 64, 80, 128, 256])
def test_every_shape_has_tiles_that_triton_takes(head_dim, model_bytes):
    for group in range(1, 17):
        for cache_bytes in {1, model_bytes}:
            for block_size in (16, 24, 64):
                tuning = decode_tuning(group, head_dim, cache_bytes, model_bytes, block_size)
                assert tuning.num_rows >= max(16, group)
                assert tuning.tile_tokens in (16, 32, 64, 128)
        for max_query in (1, 4, 5000):
            tuning = prefill_tuning(head_dim, model_bytes, max_query, group)
            assert tuning.num_rows in (16, 32, 64, 128)
            assert tuning.num_rows >= group


def test_long_prompts_have_more_tokens_in_a_program_than_few_tokens_have():
    rows = [rope_tuning(num_tokens).num_rows for num_tokens in (1, 128, 200, 512, 16384)]
    assert rows == sorted(rows)
    assert rows[-1] > rows[0]
