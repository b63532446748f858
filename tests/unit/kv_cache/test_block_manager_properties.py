"""The block manager against models of it: random lives of many requests in a pool that is always too small."""

from collections import Counter, OrderedDict
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rayinfer.kv_cache.block_hash import ROOT_HASH
from rayinfer.kv_cache.block_manager import BlockManager, OutOfBlocks
from support.golden.block_hash_reference import hash_block

BLOCK_SIZE = 2
NUM_BLOCKS = 10
FEWEST_OPERATIONS = 10_000
CHANGING_OPERATIONS = ("allocate", "find_cached_prefix", "pin", "free", "store", "reset_prefix_cache")

few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)
salts = st.sampled_from([b"", b"", b"tenant"])


class LiveRequest:
    """A request with its block table; the first `num_stored` blocks are written."""

    def __init__(self, token_ids, salt, blocks):
        self.token_ids, self.salt, self.blocks = token_ids, salt, blocks
        self.num_stored = len(blocks)

    @property
    def num_full_blocks(self):
        return len(self.token_ids) // BLOCK_SIZE


class PoolMachine(RuleBasedStateMachine):
    """Requests come, hit or bypass the cache, are computed, grow, and leave; calls that are about blocks are counted.

    In half of the runs hashes are two bits wide, so that different contents claim equal hashes all the time.
    """

    operations: ClassVar[Counter[str]] = Counter()

    def __init__(self):
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.requests = []
        self.readers = Counter()
        self.contents = {}  # block -> (salt, all tokens up to its end), as last written
        self.shadow = set()
        self.seen_hashes = set()
        self.hash_mask = 0xFF

    @initialize(weak=st.booleans())
    def choose_hashes(self, weak):
        self.hash_mask = 0x03 if weak else 0xFF

    def call(self, operation, *args, **kwargs):
        if operation == "store" or not args or args[0]:  # handing over no blocks is no operation
            self.operations[operation] += 1
        return getattr(self.manager, operation)(*args, **kwargs)

    def block_hash(self, salt, token_ids):
        full = hash_block(ROOT_HASH, salt, np.array(token_ids, dtype=np.int32))
        block_hash = full if self.hash_mask == 0xFF else bytes([full[0] & self.hash_mask])
        self.seen_hashes.add(block_hash)
        return block_hash

    def allocate(self, count):
        free_before = self.manager.num_free
        try:
            blocks = self.call("allocate", count)
        except OutOfBlocks:
            assert count > free_before == self.manager.num_free
            return None
        assert len(set(blocks)) == len(blocks) == count
        assert not any(self.readers[block] for block in blocks), "a block with readers was handed out"
        self.readers.update(blocks)
        for block in blocks:
            self.contents.pop(block, None)
        return blocks

    def release(self, blocks):
        self.call("free", blocks)
        self.readers.subtract(blocks)

    def find(self, token_ids, salt):
        ends = range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE)
        block_hashes = [self.block_hash(salt, token_ids[:end]) for end in ends]
        found = self.call("find_cached_prefix", block_hashes, np.array(token_ids, dtype=np.int32), salt)
        assert found.num_tokens == len(found.blocks) * BLOCK_SIZE <= len(token_ids)
        for end, block in zip(ends, found.blocks, strict=False):
            assert self.contents[block] == (salt, tuple(token_ids[:end])), "a hit has other content"
        return found.blocks

    def start(self, token_ids, salt, hits, num_computed):
        self.call("pin", hits)
        self.operations["hit blocks"] += len(hits)
        self.readers.update(hits)
        fresh = self.allocate(-(-len(token_ids) // BLOCK_SIZE) - len(hits))
        if fresh is None:
            self.release(hits)
            return
        request = LiveRequest(token_ids, salt, hits)
        request.blocks = [*hits, *fresh]
        self.requests.append(request)
        self.compute(len(self.requests) - 1, num_computed)

    @rule(token_ids=few_tokens, salt=salts, num_computed=st.integers(0, 5))
    def start_from_the_cache(self, token_ids, salt, num_computed):
        self.start(token_ids, salt, self.find(token_ids, salt), num_computed)

    @rule(token_ids=few_tokens, salt=salts, num_hits=st.integers(0, 2), num_computed=st.integers(0, 5))
    def start_past_the_cache(self, token_ids, salt, num_hits, num_computed):
        self.start(token_ids, salt, self.find(token_ids, salt)[:num_hits], num_computed)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99), num_blocks=st.integers(1, 4))
    def compute(self, pick, num_blocks):
        request = self.requests[pick % len(self.requests)]
        for index in range(request.num_stored, min(request.num_full_blocks, request.num_stored + num_blocks)):
            block, end = request.blocks[index], (index + 1) * BLOCK_SIZE
            self.contents[block] = (request.salt, tuple(request.token_ids[:end]))
            self.call(
                "store",
                block,
                self.block_hash(request.salt, request.token_ids[:end]),
                parent=request.blocks[index - 1] if index else None,
                token_ids=np.array(request.token_ids[end - BLOCK_SIZE : end], dtype=np.int32),
                salt=request.salt,
            )
            request.num_stored = index + 1

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99), token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def generate(self, pick, token_ids):
        request = self.requests[pick % len(self.requests)]
        grown = [*request.token_ids, *token_ids]
        fresh = self.allocate(-(-len(grown) // BLOCK_SIZE) - len(request.blocks))
        if fresh is None:
            self.finish(pick)
            return
        request.token_ids = grown
        request.blocks += fresh

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99))
    def finish(self, pick):
        self.release(self.requests.pop(pick % len(self.requests)).blocks)

    @rule()
    def free_unread_blocks(self):
        unread = [block for block in range(NUM_BLOCKS) if not self.readers[block]]
        if unread:
            with pytest.raises(RuntimeError):
                self.manager.free(unread[:1])

    @rule()
    def replay_events(self):
        events = self.call("take_events")
        assert not set(events.stored) & set(events.removed)
        assert not self.shadow & set(events.stored)
        assert self.shadow >= set(events.removed)
        self.shadow |= set(events.stored)
        self.shadow -= set(events.removed)
        assert {block_hash for block_hash in self.seen_hashes if self.manager.is_stored(block_hash)} == self.shadow

    @rule(chance=st.integers(0, 19))
    def reset(self, chance):
        if chance == 7:  # rarely, or the cache would never fill
            self.call("reset_prefix_cache")

    @invariant()
    def cached_blocks_are_counted(self):
        assert 0 <= self.manager.num_cached <= self.manager.num_free
        if not any(self.readers.values()):  # then all that can be hit is free
            assert self.manager.num_cached == sum(map(self.manager.is_stored, self.seen_hashes))

    @invariant()
    def free_and_used_add_up(self):
        num_used = sum(1 for count in self.readers.values() if count)
        assert self.manager.num_used == num_used
        assert self.manager.num_free + num_used == NUM_BLOCKS

    def teardown(self):
        while self.requests:
            self.finish(0)
        self.replay_events()
        assert sorted(self.allocate(NUM_BLOCKS)) == list(range(NUM_BLOCKS))
        self.replay_events()
        assert not self.shadow


def test_thousands_of_random_operations_keep_every_promise():
    PoolMachine.operations.clear()
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=400,
            stateful_step_count=60,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    counted = {name: PoolMachine.operations[name] for name in CHANGING_OPERATIONS}
    assert sum(counted.values()) >= FEWEST_OPERATIONS, counted
    assert min(PoolMachine.operations["store"], PoolMachine.operations["hit blocks"]) >= 200, PoolMachine.operations


class LruModel:
    """The cache in plain words: prefixes with readers, and free ones from the least to the most recently used."""

    def __init__(self, num_blocks):
        self.num_empty = num_blocks
        self.readers = Counter()
        self.free = OrderedDict()

    def start(self, prefixes):
        """Returns how many prefixes hit, or None when there is no room."""
        num_hits = 0
        while num_hits < len(prefixes) and self.holds(prefixes[num_hits]):
            num_hits += 1
        num_taken_free = sum(1 for prefix in prefixes[:num_hits] if prefix in self.free)
        num_new = len(prefixes) - num_hits
        if num_new > self.num_empty + len(self.free) - num_taken_free:
            for prefix in reversed([prefix for prefix in prefixes[:num_hits] if prefix in self.free]):
                self.free.move_to_end(prefix)
            return None
        for prefix in prefixes[:num_hits]:
            self.free.pop(prefix, None)
        for _ in range(num_new):
            if self.num_empty:
                self.num_empty -= 1
            else:
                self.free.popitem(last=False)
        self.readers.update(prefixes)
        return num_hits

    def finish(self, prefixes):
        for prefix in reversed(prefixes):
            self.readers[prefix] -= 1
            if not self.readers[prefix]:
                self.free[prefix] = None

    def holds(self, prefix):
        return self.readers[prefix] > 0 or prefix in self.free


class LruPair:
    """The model and the manager, driven alike by requests that are computed as soon as they start."""

    def __init__(self):
        self.model, self.manager = LruModel(NUM_BLOCKS), BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.running = []
        self.block_hashes = {}  # of every prefix seen

    def start(self, blocks_of_tokens):
        token_ids = np.repeat(np.array(blocks_of_tokens, dtype=np.int32), BLOCK_SIZE)
        prefixes = [tuple(blocks_of_tokens[: end + 1]) for end in range(len(blocks_of_tokens))]
        block_hashes = [hash_block(ROOT_HASH, b"", np.array(prefix, dtype=np.int32)) for prefix in prefixes]
        self.block_hashes.update(zip(prefixes, block_hashes, strict=True))
        expected_hits = self.model.start(prefixes)
        blocks = self.manager.find_cached_prefix(block_hashes, token_ids).blocks
        self.manager.pin(blocks)
        num_hits = len(blocks)
        try:
            blocks += self.manager.allocate(len(prefixes) - num_hits)
        except OutOfBlocks:
            self.manager.free(blocks)
            assert expected_hits is None
            return
        assert num_hits == expected_hits
        for i in range(num_hits, len(blocks)):
            own = token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
            self.manager.store(blocks[i], block_hashes[i], parent=blocks[i - 1] if i else None, token_ids=own)
        self.running.append((prefixes, blocks))

    def finish(self, pick):
        prefixes, blocks = self.running.pop(pick % len(self.running))
        self.model.finish(prefixes)
        self.manager.free(blocks)

    def compare(self):
        for prefix, block_hash in self.block_hashes.items():
            assert self.manager.is_stored(block_hash) == self.model.holds(prefix), prefix


starts = st.lists(st.integers(0, 2), min_size=1, max_size=6)
finishes = st.integers(0, 9)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(starts, finishes), min_size=10, max_size=60))
def test_hits_and_evictions_are_exactly_those_of_a_leaf_first_lru(actions):
    pair = LruPair()
    for action in actions:
        if isinstance(action, list):
            pair.start(action)
        elif pair.running:
            pair.finish(action)
        pair.compare()
