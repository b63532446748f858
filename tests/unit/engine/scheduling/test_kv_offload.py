"""The bookkeeping of the second pool: what is kept, what is copied in which order, and when it falls back."""

from types import SimpleNamespace

import numpy as np
import pytest

from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.kv_cache.block_hash import BlockHashes

SIZE = 4


def request(request_id, token_ids=()):
    """As much of a request as the second pool looks at."""
    block_hashes = BlockHashes(SIZE, b"salt")
    block_hashes.extend(np.array(token_ids, np.int32), len(token_ids))
    return SimpleNamespace(request_id=request_id, block_hashes=block_hashes, salt=b"salt", trace=None)


def tokens(count, start=0):
    return np.arange(start, start + count, dtype=np.int32)


def copies_of(offload):
    noted = [(copy.direction, copy.source_blocks, copy.target_blocks) for copy in offload.copies]
    offload.copies.clear()
    return noted


@pytest.mark.parametrize("num_tokens", [1, 4, 5, 11, 12])
def test_what_was_computed_goes_out_and_comes_back_whole_blocks_at_a_time(num_tokens):
    offload, a = KVOffload(8, SIZE), request("a")
    count = -(-num_tokens // SIZE)
    assert offload.swap_out(a, tokens(num_tokens), [5, 9, 7, 3], 0)
    assert (offload.holds(a), offload.num_used) == (True, count)
    assert offload.swap_in(a, [1, 2, 4, 6], 0) == num_tokens
    assert (offload.holds(a), offload.num_used) == (False, 0)
    host = list(range(count))
    assert copies_of(offload) == [("out", [5, 9, 7, 3][:count], host), ("in", host, [1, 2, 4, 6][:count])]


def test_blocks_that_the_prefix_cache_still_has_are_not_copied_back():
    offload, a = KVOffload(8, SIZE), request("a")
    offload.swap_out(a, tokens(10), [5, 9, 7], 0)
    copies_of(offload)
    assert offload.swap_in(a, [5, 9, 1], num_cached_blocks=2) == 10
    assert copies_of(offload) == [("in", [2], [1])]


def test_nothing_is_copied_back_where_the_prefix_cache_has_as_much():
    offload, a = KVOffload(8, SIZE), request("a")
    offload.swap_out(a, tokens(10), [5, 9, 7], 0)
    copies_of(offload)
    assert offload.swap_in(a, [5, 9, 7, 8], num_cached_blocks=4) == 16
    assert copies_of(offload) == []
    assert offload.num_used == 0


def test_a_request_that_was_never_swapped_has_what_the_prefix_cache_has():
    offload = KVOffload(8, SIZE)
    assert offload.swap_in(request("new"), [1, 2], num_cached_blocks=1) == SIZE
    assert copies_of(offload) == []


def test_what_does_not_fit_is_not_kept_and_nothing_is_taken():
    offload, a, b = KVOffload(4, SIZE), request("a"), request("b")
    assert offload.swap_out(a, tokens(10), [0, 1, 2], 0)
    copies_of(offload)
    assert not offload.swap_out(b, tokens(8, 50), [3, 4], 0)
    assert (offload.holds(b), offload.num_used, copies_of(offload)) == (False, 3, [])
    assert offload.swap_in(b, [3, 4], 0) == 0


def test_a_request_that_has_computed_nothing_needs_no_place():
    offload, a = KVOffload(4, SIZE), request("a")
    assert not offload.swap_out(a, tokens(0), [0, 1], 0)
    assert not offload.holds(a)


def test_what_is_kept_for_a_request_that_ends_is_freed():
    offload, a = KVOffload(4, SIZE), request("a")
    offload.swap_out(a, tokens(10), [0, 1, 2], 0)
    for _ in range(2):
        offload.drop(a)
        assert (offload.holds(a), offload.num_used) == (False, 0)


def test_equal_blocks_of_two_requests_are_kept_once_and_as_long_as_one_of_them_needs_them():
    prompt = tokens(8)
    offload, a, b = KVOffload(4, SIZE), request("a", prompt), request("b", prompt)
    assert offload.swap_out(a, np.append(prompt, 50), [0, 1, 2], 2)
    assert offload.swap_out(b, np.append(prompt, 60), [0, 1, 3], 2)
    assert offload.num_used == 4
    assert copies_of(offload) == [("out", [0, 1, 2], [0, 1, 2]), ("out", [3], [3])]
    offload.drop(a)
    assert offload.num_used == 3
    assert offload.swap_in(b, [7, 8, 9], 0) == 9
    assert copies_of(offload) == [("in", [0, 1, 3], [7, 8, 9])]


def test_without_prefix_caching_equal_blocks_are_kept_twice():
    prompt = tokens(8)
    offload = KVOffload(4, SIZE, enable_prefix_caching=False)
    for name in "ab":
        assert offload.swap_out(request(name), prompt, [0, 1], 0)
    assert offload.num_used == 4


def test_blocks_of_another_prefix_with_the_same_tokens_behind_it_are_not_taken_for_equal():
    first, second = np.append(tokens(4), tokens(4)), np.append(tokens(4, 90), tokens(4))
    offload = KVOffload(8, SIZE)
    offload.swap_out(request("a", first), first, [0, 1], 2)
    offload.swap_out(request("b", second), second, [2, 3], 2)
    assert offload.num_used == 4


def test_everything_is_forgotten_at_once():
    prompt = tokens(8)
    offload, a = KVOffload(4, SIZE), request("a", prompt)
    offload.swap_out(a, prompt, [0, 1], 2)
    offload.drop_all()
    assert (offload.holds(a), offload.num_used, copies_of(offload)) == (False, 0, [])
    offload.swap_out(request("b", prompt), prompt, [2, 3], 2)
    assert [copy.source_blocks for copy in offload.copies] == [[2, 3]]  # no hit on what is gone
