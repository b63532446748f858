import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.kv_cache.free_list import FreeList


def drain(free_list):
    return free_list.take_first(len(free_list))


def test_a_new_list_gives_out_all_blocks_in_order():
    assert drain(FreeList(5)) == [0, 1, 2, 3, 4]


def test_blocks_return_to_either_end():
    free_list = FreeList(4)
    drain(free_list)
    free_list.add_last(2)
    free_list.add_last(0)
    free_list.add_first(3)
    free_list.add_first(1)
    assert drain(free_list) == [1, 3, 2, 0]


def test_a_block_is_taken_from_the_middle():
    free_list = FreeList(4)
    free_list.remove(2)
    assert len(free_list) == 3
    assert drain(free_list) == [0, 1, 3]


def test_a_list_gives_no_more_than_it_has():
    free_list = FreeList(2)
    assert free_list.take_first(1) == [0]
    with pytest.raises(AssertionError, match="2 blocks requested, 1 are in the list"):
        free_list.take_first(2)
    assert free_list.take_first(0) == []
    assert drain(free_list) == [1]


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(["take", "remove", "first", "last"]), st.integers(0, 5))))
def test_it_behaves_like_a_plain_list(num_blocks, operations):
    free_list, model = FreeList(num_blocks), list(range(num_blocks))
    for operation, block in operations:
        if operation == "take" and block <= len(model):
            assert free_list.take_first(block) == model[:block]
            del model[:block]
        elif operation == "remove" and block in model:
            free_list.remove(block)
            model.remove(block)
        elif operation in ("first", "last") and block < num_blocks and block not in model:
            (free_list.add_first if operation == "first" else free_list.add_last)(block)
            model.insert(0 if operation == "first" else len(model), block)
        assert len(free_list) == len(model)
    assert drain(free_list) == model
