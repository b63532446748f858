import pytest
import torch

from rayinfer.config import engine_config
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.cache_tensors import CPU_POOL_BYTES, allocate_kv_caches, count_kv_blocks, free_memory_bytes
from rayinfer_kernels import ops

CPU = torch.device("cpu")


def test_a_number_of_blocks_that_is_asked_for_goes_before_any_measure():
    config = engine_config(num_kv_blocks=7, memory_fraction=0.5)
    assert count_kv_blocks(config, 1 << 20, CPU) == 7


def test_a_number_of_blocks_beyond_the_machines_memory_is_refused_with_both_sizes():
    with pytest.raises(ConfigError, match=rf"num_kv_blocks 7 .* {7 * 10**15} bytes"):
        count_kv_blocks(engine_config(num_kv_blocks=7), 10**15, CPU)


def test_a_cpu_gives_two_gibibytes_unless_told_otherwise():
    assert count_kv_blocks(engine_config(), 1 << 20, CPU) == CPU_POOL_BYTES >> 20 == 2048


def test_a_fraction_is_of_what_is_free_now():
    free = free_memory_bytes(CPU)
    got = count_kv_blocks(engine_config(memory_fraction=0.5), 1 << 20, CPU)
    assert got == pytest.approx(free / 2 / (1 << 20), rel=0.25)


def test_a_fraction_too_small_for_one_block_is_refused_with_both_sizes():
    with pytest.raises(ConfigError, match=f"memory_fraction .* {10**15} bytes"):
        count_kv_blocks(engine_config(memory_fraction=0.01), 10**15, CPU)


def test_every_layer_gets_its_own_pool():
    caches = allocate_kv_caches(3, 5, 8, 2, 16, torch.float32, CPU)
    assert [cache.num_blocks for cache in caches] == [5, 5, 5]
    assert {cache.block_size for cache in caches} == {8}
    ones = torch.ones(1, 2, 16)
    ops.write_kv(ones, ones, caches[1], torch.tensor([8]))
    lengths = torch.tensor([1], dtype=torch.int32)
    answers = [
        ops.paged_attention(ones, cache, lengths[None], torch.tensor([0, 1], dtype=torch.int32), lengths, 1.0).max()
        for cache in caches
    ]
    assert answers == [0, 1, 0]
