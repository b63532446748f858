"""Division of memory between blocks of full attention and pages of sliding windows."""

from dataclasses import replace

import pytest

from rayinfer.kv_cache.hybrid_sizes import PoolSizes, StepSize, divide_pool, pages_for

CPU_STEP = StepSize(num_rows=64, num_tokens=512, window=512, block_size=16)
GEMMA_3_1B = {"num_full_layers": 4, "num_sliding_layers": 22}


def bytes_of(sizes, num_full_layers, num_sliding_layers):
    return sizes.num_blocks * num_full_layers + sizes.num_window_pages * num_sliding_layers


@pytest.mark.parametrize("num_whole_blocks", [80, 200, 1000, 5041, 100_000])
@pytest.mark.parametrize("layers", [GEMMA_3_1B, {"num_full_layers": 12, "num_sliding_layers": 12}])
def test_both_pools_fit_into_the_memory_and_hold_more_tokens(num_whole_blocks, layers):
    sizes = divide_pool(num_whole_blocks, **layers, step=CPU_STEP)
    assert bytes_of(sizes, **layers) <= num_whole_blocks * sum(layers.values())
    assert sizes.num_blocks >= num_whole_blocks
    assert 2 * sizes.num_window_pages >= num_whole_blocks or sizes.num_window_pages >= CPU_STEP.most_pages


def test_a_gemma_holds_more_than_twice_the_tokens_in_the_same_memory():
    sizes = divide_pool(5041, **GEMMA_3_1B, step=CPU_STEP)
    assert sizes.num_blocks > 2.7 * 5041
    assert sizes.num_window_pages > CPU_STEP.most_pages


def test_pages_that_steps_would_fill_are_not_divided():
    step = replace(CPU_STEP, num_tokens=8192)
    assert divide_pool(600, **GEMMA_3_1B, step=step) == PoolSizes(num_blocks=600, num_window_pages=600)


def test_blocks_without_full_layers_take_no_memory():
    sizes = divide_pool(1000, num_full_layers=0, num_sliding_layers=32, step=CPU_STEP)
    assert sizes == PoolSizes(num_blocks=4000, num_window_pages=1000)


def test_a_stage_without_sliding_layers_keeps_its_blocks():
    assert divide_pool(1000, num_full_layers=5, num_sliding_layers=0, step=CPU_STEP).num_blocks == 1000


def test_a_given_number_of_blocks_gets_as_many_pages_as_can_be_in_use():
    assert pages_for(100, CPU_STEP) == 100
    assert pages_for(100_000, CPU_STEP) == 64 * (32 + 2) + 32
