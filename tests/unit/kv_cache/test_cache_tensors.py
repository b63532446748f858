import dataclasses

import psutil
import pytest
import torch

from rayinfer.kv_cache.cache_tensors import BlockPool, BlockShape, allocate_kv_caches
from rayinfer_kernels import ops

CPU = torch.device("cpu")
SHAPE = BlockShape(num_layers=2, block_size=8, num_kv_heads=2, head_dim=16, dtype=torch.float32)


def filled(num_blocks, shape=SHAPE):
    """A pool whose block b holds b + 1 everywhere, and in the second layer 100 more."""
    pool = BlockPool(shape, num_blocks, CPU)
    for layer, cache in enumerate(pool.caches):
        for tensor in (cache.key, cache.value):
            tensor += torch.arange(1, num_blocks + 1).view(-1, 1, 1, 1, 1) + 100 * layer
    return pool


def contents(pool):
    """Return what each block holds, by layer; all of a block holds the same."""
    for cache in pool.caches:
        assert (cache.key.flatten(1) == cache.key.flatten(1)[:, :1]).all()
        assert (cache.value.flatten(1) == cache.key.flatten(1)[:, :1]).all()
    return [cache.key.flatten(1)[:, 0].tolist() for cache in pool.caches]


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


def test_a_block_counts_its_bytes_in_every_layer():
    assert SHAPE.num_bytes == 2 * 2 * 8 * 2 * 16 * 4


def test_a_block_of_eight_bits_moves_with_its_scales():
    shape = dataclasses.replace(SHAPE, dtype=torch.int8)
    pool, kept = BlockPool(shape, 4, CPU), BlockPool(shape, 1, CPU)
    heads = torch.randn(8, 2, 16)
    for cache in pool.caches:
        ops.write_kv(heads, heads, cache, torch.arange(24, 32))
    pool.copy_to(kept, [3], [0])
    for cache, copied in zip(pool.caches, kept.caches, strict=True):
        assert all(torch.equal(one[3], other[0]) for one, other in zip(cache.tensors, copied.tensors, strict=True))
        assert copied.scales.key.all()
    assert shape.num_bytes == sum(tensor[0].nbytes for cache in pool.caches for tensor in cache.tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_blocks_of_a_gpu_keep_its_layout_in_the_hosts_memory(dtype):
    shape = dataclasses.replace(SHAPE, dtype=dtype, computed_on=torch.device("cuda"))
    pool, kept = BlockPool(shape, 4, CPU), BlockPool(shape, 2, CPU)
    heads = torch.randn(8, 2, 16).to(torch.bfloat16)
    for cache in pool.caches:
        assert cache.key.shape == cache.value.shape == (4, 2, 8, 16)
        cache.write(heads, -heads, torch.arange(24, 32))
    pool.copy_to(kept, [3], [1])
    for cache in kept.caches:
        keys, values = cache.read_blocks(torch.tensor([1]))
        assert torch.equal(keys, -values)
        assert torch.equal(keys.transpose(0, 1).to(dtype).float(), heads.to(dtype).float())
    assert shape.num_bytes == sum(tensor[0].nbytes for cache in pool.caches for tensor in cache.tensors)
    assert shape.num_bytes == 2 * 2 * 8 * 2 * 16 * dtype.itemsize


def test_blocks_are_copied_between_two_pools_in_every_layer_and_the_others_stay():
    source, target = filled(4), filled(3)
    source.copy_to(target, [3, 0], [0, 2])
    assert contents(target) == [[4, 2, 1], [104, 102, 101]]
    assert contents(source) == contents(filled(4))


def test_no_blocks_are_copied_as_easily():
    pool = filled(2)
    filled(3).copy_to(pool, [], [])
    assert contents(pool) == contents(filled(2))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_blocks_move_into_a_pool_of_their_own_and_back_to_their_places(count):
    blocks, places = [5, 0, 2][:count], range(count)
    pool, kept = filled(6), BlockPool(SHAPE, count, CPU)
    pool.move_to(kept, blocks, places)
    assert pool.caches == []
    again = BlockPool(SHAPE, 6, CPU)
    kept.move_to(again, places, blocks)
    assert contents(again) == [
        [x if x - 1 in blocks else 0 for x in range(1, 7)],
        [x + 100 if x - 1 in blocks else 0 for x in range(1, 7)],
    ]


def test_moving_a_few_blocks_gives_the_memory_of_the_pool_back():
    shape = BlockShape(num_layers=2, block_size=16, num_kv_heads=8, head_dim=64, dtype=torch.float32)
    pool, process = filled(512, shape), psutil.Process()
    full = process.memory_info().rss
    kept = BlockPool(shape, 2, CPU)
    pool.move_to(kept, [9, 400], [0, 1])
    assert full - process.memory_info().rss > 0.9 * 512 * shape.num_bytes
    assert contents(kept) == [[10, 401], [110, 501]]
