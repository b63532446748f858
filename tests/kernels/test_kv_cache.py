import psutil
import torch

from rayinfer_kernels import ops


def test_a_pool_takes_no_memory_before_it_is_written_to():
    process = psutil.Process()
    before = process.memory_info().rss
    cache = ops.allocate_kv_cache(4096, 16, 8, 64, torch.float32, torch.device("cpu"))
    assert cache.num_blocks * ops.kv_block_bytes(16, 8, 64, torch.float32) == 256 << 20
    assert process.memory_info().rss - before < 32 << 20
    assert not cache.key[::512].any()


def test_a_block_of_eight_bits_counts_its_scales():
    cache = ops.allocate_kv_cache(4, 16, 3, 40, torch.int8, torch.device("cpu"))
    assert sum(tensor.nbytes for tensor in cache.tensors) == 4 * ops.kv_block_bytes(16, 3, 40, torch.int8)
    assert ops.kv_block_bytes(16, 3, 40, torch.int8) == 2 * 16 * 3 * (48 + 4)


def test_a_pool_can_be_empty():
    assert ops.allocate_kv_cache(0, 16, 2, 8, torch.bfloat16, torch.device("cpu")).num_blocks == 0
