import pytest
import torch

from rayinfer_kernels.block_copy import copy_blocks, fetch_from_host, send_to_host
from rayinfer_kernels.kv_cache import allocate_kv_cache

CPU = torch.device("cpu")


def pool(num_blocks, dtype=torch.float32, device=CPU, *, pinned=False):
    """Blocks of random numbers."""
    computed_on = torch.device("cuda") if pinned else device
    cache = allocate_kv_cache(num_blocks, 16, 3, 24, dtype, device, pinned=pinned, computed_on=computed_on)
    chance = torch.Generator().manual_seed(num_blocks)
    for tensor in cache.tensors:
        tensor.copy_(100 * torch.randn(tensor.shape, generator=chance).clamp(-1.27, 1.27))
    return cache


def copied(cache):
    return [tensor.clone() for tensor in cache.tensors]


def check(before, source, target, source_blocks, target_blocks):
    """The target holds the tensors that it held before, and the source's blocks in their places."""
    for kept, now, given in zip(before, target.tensors, source, strict=True):
        wanted = kept.clone()
        for source_block, target_block in zip(source_blocks, target_blocks, strict=True):
            wanted[target_block] = given[source_block].to(wanted.device)
        assert torch.equal(now, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("source_blocks", "target_blocks"), [([], []), ([3], [0]), ([4, 0, 2], [1, 5, 0])])
def test_blocks_arrive_in_another_pool_and_nothing_else_changes(dtype, source_blocks, target_blocks):
    source, target = pool(5, dtype), pool(6, dtype)
    before = copied(target)
    copy_blocks(source, target, torch.tensor(source_blocks).long(), torch.tensor(target_blocks).long())
    check(before, source.tensors, target, source_blocks, target_blocks)


def test_blocks_can_change_places_within_a_pool():
    cache = pool(4)
    before = copied(cache)
    copy_blocks(cache, cache, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    check(before, before, cache, [0, 1, 2], [1, 2, 0])


@pytest.mark.parametrize("move", [fetch_from_host, send_to_host])
@pytest.mark.parametrize("ends", [([], []), ([2], [5]), ([0, 1, 2], [3, 4, 5]), ([3, 4, 0, 2, 1], [0, 3, 1, 2, 5])])
def test_both_ways_across_bring_every_block_to_its_place(move, ends):
    given, kept = pool(5).key, pool(6).key  # as if they were on two devices
    wanted = kept.clone()
    wanted[ends[1]] = given[ends[0]]
    move(given, kept, *(torch.tensor(blocks).long() for blocks in ends))
    assert torch.equal(kept, wanted)


@pytest.mark.gpu
def test_blocks_cross_to_a_gpu_and_back_in_the_order_in_which_they_are_sent():
    gpu = torch.device("cuda")
    host, device = pool(5, pinned=True), pool(6, device=gpu)
    host_before, device_before = copied(host), copied(device)
    copy_blocks(device, host, torch.tensor([4, 1]), torch.tensor([0, 3]))
    copy_blocks(host, device, torch.tensor([3, 2]), torch.tensor([5, 4]))  # one of them has only just been sent
    torch.cuda.synchronize()
    check(host_before, device_before, host, [4, 1], [0, 3])
    check(device_before, host.tensors, device, [3, 2], [5, 4])
