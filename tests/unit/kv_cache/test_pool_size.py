import psutil
import pytest
import torch

from rayinfer.config import engine_config
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.host_memory import available_host_bytes
from rayinfer.kv_cache.pool_size import (
    CPU_POOL_BYTES,
    can_prefault,
    count_blocks_taken,
    count_kv_blocks,
    count_offload_blocks,
    free_memory_bytes,
)

CPU = torch.device("cpu")


def test_a_number_of_blocks_that_is_asked_for_goes_before_any_measure():
    config = engine_config(num_kv_blocks=7, memory_fraction=0.5)
    assert count_kv_blocks(config, 1 << 20, CPU) == 7


def test_a_number_of_blocks_beyond_the_machines_memory_is_refused_with_both_sizes():
    with pytest.raises(ConfigError, match=rf"num_kv_blocks 7 .* {7 * 10**15} bytes"):
        count_kv_blocks(engine_config(num_kv_blocks=7), 10**15, CPU)


def test_the_default_cache_on_a_cpu_is_two_gibibytes():
    assert count_kv_blocks(engine_config(), 1 << 20, CPU) == CPU_POOL_BYTES >> 20 == 2048


def test_a_fraction_is_of_what_is_free_now():
    free = free_memory_bytes(CPU)
    got = count_kv_blocks(engine_config(memory_fraction=0.5), 1 << 20, CPU)
    assert got == pytest.approx(free / 2 / (1 << 20), rel=0.25)


def test_files_that_the_system_keeps_in_memory_count_as_free():
    assert 0 < free_memory_bytes(CPU) <= 1.1 * psutil.virtual_memory().available  # less in a container


def test_a_fraction_too_small_for_one_block_is_refused_with_both_sizes():
    with pytest.raises(ConfigError, match=f"memory_fraction .* {10**15} bytes"):
        count_kv_blocks(engine_config(memory_fraction=0.01), 10**15, CPU)


def test_a_pool_in_bytes_has_as_many_blocks_as_fit_whatever_the_fraction():
    config = engine_config(kv_cache_memory_bytes=(5 << 20) + 7, memory_fraction=0.001)
    assert count_kv_blocks(config, 1 << 20, CPU) == 5


@pytest.mark.parametrize("name", ["kv_cache_memory_bytes", "kv_offload_bytes"])
@pytest.mark.parametrize(("num_bytes", "message"), [(999, "holds no KV block: one takes 1000"), (10**18, "at most")])
def test_a_pool_in_bytes_that_is_too_small_or_too_large_is_refused_by_name(name, num_bytes, message):
    config = engine_config(**{name: num_bytes})
    with pytest.raises(ConfigError, match=f"{name} {num_bytes} .*{message}"):
        count_kv_blocks(config, 1000, CPU) if name == "kv_cache_memory_bytes" else count_offload_blocks(config, 1000)


def test_there_is_no_second_pool_unless_it_is_asked_for():
    assert count_offload_blocks(engine_config(), 1000) == 0
    assert count_offload_blocks(engine_config(kv_offload_bytes=4999), 1000) == 4


def test_what_is_reserved_is_taken_off_before_a_share_is_made_of_the_rest():
    config = engine_config(memory_fraction=0.5)
    free = free_memory_bytes(CPU)
    block_bytes = 1 << 20
    whole, rest = (count_kv_blocks(config, block_bytes, CPU, reserved_bytes=reserved) for reserved in (0, free // 2))
    assert rest == pytest.approx(whole / 2, rel=0.2)
    with pytest.raises(ConfigError, match="leaves 0 bytes"):
        count_kv_blocks(config, block_bytes, CPU, reserved_bytes=2 * free)


def test_what_torch_only_keeps_for_later_is_free_on_a_gpu(monkeypatch):
    free, kept = [5 << 30], 2 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 80 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(free.pop() + kept))
    config = engine_config(memory_fraction=0.5)
    assert count_kv_blocks(config, 1 << 20, torch.device("cuda"), reserved_bytes=1 << 30) == 3 << 10


def test_blocks_get_memory_ahead_of_their_use_for_some_tokens_and_all_that_a_store_loads():
    assert count_blocks_taken(engine_config(), 1 << 20, "cpu") == 512
    assert count_blocks_taken(engine_config(kv_store_gib=3.0), 1 << 20, "cpu") == 3072
    assert count_blocks_taken(engine_config(), 1 << 20, "cuda") == 0


def test_a_pool_leaves_three_times_what_it_takes_ahead():
    available = available_host_bytes()
    assert can_prefault(int(0.3 * available))
    assert not can_prefault(int(0.4 * available))
