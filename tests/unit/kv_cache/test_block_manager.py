import numpy as np
import pytest

from rayinfer.errors import ConfigError
from rayinfer.kv_cache.block_hash import BlockHashes
from rayinfer.kv_cache.block_manager import BlockManager, OutOfBlocks
from support.kernels.work_count import count_bytecodes

BLOCK_SIZE = 2


@pytest.fixture
def manager():
    return BlockManager(num_blocks=6, block_size=BLOCK_SIZE)


def prompt(start, num_blocks):
    return np.arange(start, start + num_blocks * BLOCK_SIZE, dtype=np.int32)


def hashes_of(token_ids):
    chain = BlockHashes(BLOCK_SIZE, b"")
    chain.extend(token_ids, len(token_ids))
    return chain.hashes


def find(manager, token_ids):
    return manager.find_cached_prefix(hashes_of(token_ids), token_ids).blocks


def compute(manager, token_ids):
    """Do what a scheduler does for one request: hit, pin, allocate and store; returns its block table."""
    block_hashes, blocks = hashes_of(token_ids), find(manager, token_ids)
    manager.pin(blocks)
    num_hits = len(blocks)
    blocks += manager.allocate(len(block_hashes) - num_hits)
    for i in range(num_hits, len(blocks)):
        own = token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
        manager.store(blocks[i], block_hashes[i], parent=blocks[i - 1] if i else None, token_ids=own)
    return blocks


def test_free_and_used_blocks_add_up(manager):
    assert (manager.num_free, manager.num_used, manager.num_blocks) == (6, 0, 6)
    blocks = manager.allocate(4)
    assert len(set(blocks)) == 4
    assert (manager.num_free, manager.num_used) == (2, 4)
    manager.free(blocks[:1])
    assert (manager.num_free, manager.num_used) == (3, 3)


def test_asking_for_too_many_blocks_takes_nothing(manager):
    blocks = compute(manager, prompt(0, 2))
    manager.free(blocks)
    with pytest.raises(OutOfBlocks, match="7 blocks requested, 6 of 6 free"):
        manager.allocate(7)
    assert manager.num_free == 6
    assert find(manager, prompt(0, 2)) == blocks


def test_allocating_none_is_allowed_when_none_is_free(manager):
    manager.allocate(6)
    assert manager.allocate(0) == []


def test_a_block_stays_used_until_its_last_reader_is_gone(manager):
    blocks = compute(manager, prompt(0, 2))
    manager.pin(blocks)
    manager.free(blocks)
    assert manager.num_used == 2
    manager.free(blocks)
    assert manager.num_used == 0


def test_freeing_a_block_without_readers_is_an_error(manager):
    (block,) = manager.allocate(1)
    manager.free([block])
    with pytest.raises(RuntimeError, match=f"block {block} is freed but has no readers"):
        manager.free([block])
    assert manager.num_free == 6


def test_pinning_a_free_block_that_holds_nothing_is_an_error(manager):
    with pytest.raises(RuntimeError, match="block 3 is pinned but holds nothing"):
        manager.pin([3])
    assert manager.num_free == 6


def test_a_found_prefix_that_was_evicted_before_it_was_pinned_is_noticed(manager):
    manager.free(compute(manager, prompt(0, 2)))
    blocks = find(manager, prompt(0, 2))
    manager.free(manager.allocate(6))
    with pytest.raises(RuntimeError, match="evicted in between"):
        manager.pin(blocks)


def test_a_pinned_prefix_survives_an_allocation_of_everything_else(manager):
    manager.free(compute(manager, prompt(0, 2)))
    blocks = find(manager, prompt(0, 2))
    manager.pin(blocks)
    others = manager.allocate(4)
    assert not set(others) & set(blocks)
    assert find(manager, prompt(0, 2)) == blocks
    with pytest.raises(OutOfBlocks):
        manager.allocate(1)


def test_finding_a_prefix_does_not_keep_it(manager):
    manager.free(compute(manager, prompt(0, 2)))
    find(manager, prompt(0, 2))
    assert manager.num_free == 6


def test_a_free_cached_block_is_hit_until_it_is_handed_out_again(manager):
    manager.free(compute(manager, prompt(0, 2)))
    manager.free(manager.allocate(4))
    assert len(find(manager, prompt(0, 2))) == 2
    manager.allocate(5)
    assert len(find(manager, prompt(0, 2))) == 1
    manager.allocate(1)
    assert find(manager, prompt(0, 2)) == []


def test_leaves_are_evicted_before_their_parents(manager):
    blocks = compute(manager, prompt(0, 6))
    manager.free(blocks)
    assert manager.allocate(3) == blocks[:2:-1]
    assert find(manager, prompt(0, 6)) == blocks[:3]


def test_the_least_recently_used_prefix_is_evicted_first(manager):
    old, new = compute(manager, prompt(0, 3)), compute(manager, prompt(100, 3))
    manager.free(old)
    manager.free(new)
    manager.free(compute(manager, prompt(0, 3)))
    manager.allocate(3)
    assert find(manager, prompt(0, 3)) == old
    assert find(manager, prompt(100, 3)) == []


def test_blocks_that_hold_nothing_are_handed_out_before_cached_ones(manager):
    cached = compute(manager, prompt(0, 3))
    scratch = manager.allocate(3)
    manager.free(cached)
    manager.free(scratch)
    assert set(manager.allocate(3)) == set(scratch)
    assert find(manager, prompt(0, 3)) == cached


def test_the_unfilled_last_block_of_a_request_is_reused_first(manager):
    full = compute(manager, prompt(0, 2))
    (unfilled,) = manager.allocate(1)
    manager.free([*full, unfilled])
    assert manager.allocate(1) == [unfilled]


def test_computing_a_duplicate_of_a_cached_block_refreshes_it(manager):
    token_ids = prompt(0, 2)
    cached = compute(manager, token_ids)
    manager.free(cached)
    manager.pin(cached[:1])
    (twin,) = manager.allocate(1)
    manager.store(twin, hashes_of(token_ids)[1], parent=cached[0], token_ids=token_ids[2:])
    manager.free(compute(manager, prompt(100, 1)))
    manager.free([cached[0], twin])
    manager.allocate(4)
    assert find(manager, token_ids) == cached
    assert find(manager, prompt(100, 1)) == []


def test_turn_two_of_a_chat_reads_the_answer_of_turn_one(manager):
    turn_one = prompt(0, 4)
    blocks = compute(manager, turn_one[: 2 * BLOCK_SIZE])
    (generated,) = manager.allocate(1)
    manager.store(generated, hashes_of(turn_one)[2], parent=blocks[1], token_ids=turn_one[4:6])
    manager.free([*blocks, generated])
    assert find(manager, turn_one) == [*blocks, generated]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (-1, 16), (16, 0)])
def test_a_pool_of_nothing_is_refused(num_blocks, block_size):
    with pytest.raises(ConfigError, match=f"{num_blocks} and {block_size}"):
        BlockManager(num_blocks, block_size)


def count_a_life(num_blocks):
    """Count the work of each operation on a pool that is full of cached blocks, half of them with readers."""
    manager = BlockManager(num_blocks, BLOCK_SIZE)
    blocks = compute(manager, prompt(0, num_blocks))
    manager.free(blocks[num_blocks // 2 :])
    token_ids = prompt(10**6, 3)
    block_hashes = hashes_of(token_ids)
    taken = []
    allocate = count_bytecodes(lambda: taken.extend(manager.allocate(3)))
    store = count_bytecodes(lambda: manager.store(taken[0], block_hashes[0], parent=None, token_ids=token_ids[:2]))
    release = count_bytecodes(lambda: manager.free(taken))
    find = count_bytecodes(lambda: manager.find_cached_prefix(block_hashes, token_ids))
    pin = count_bytecodes(lambda: manager.pin(taken[:1]))
    return [allocate, store, release, find, pin]


def test_the_work_of_an_operation_does_not_grow_with_the_pool():
    small, large = count_a_life(16), count_a_life(16_384)
    assert small == large
    assert all(0 < count < 2000 for count in small)
