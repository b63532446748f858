"""Sharding of heads and channels over ranks, and the slices of a checkpoint's tensors in each shard."""

import itertools

import pytest
import torch

from rayinfer.errors import ConfigError
from rayinfer.layers.checkpoint_slices import CheckpointSlice
from rayinfer.layers.shards import ShardSlice, shard_heads, shifted
from rayinfer.layers.weight_copies import copies_for_shard
from rayinfer.tensor_parallel import RankCoordinates


def head_shards(num_heads, num_kv_heads, num_ranks):
    return [shard_heads(num_heads, num_kv_heads, RankCoordinates(rank, num_ranks)) for rank in range(num_ranks)]


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(8, 8), (8, 2), (9, 3), (6, 1), (14, 2)])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_each_head_of_queries_is_one_ranks_and_finds_its_keys_there(num_ranks, num_heads, num_kv_heads):
    parts = head_shards(num_heads, num_kv_heads, num_ranks)
    assert list(itertools.chain.from_iterable(part.query for part in parts)) == list(range(num_heads))
    per_kv_head = num_heads // num_kv_heads
    for part in parts:
        num_per_own = len(part.query) // len(part.key_value)  # as attention over grouped queries has it
        for place, head in enumerate(part.query):
            assert part.key_value[place // num_per_own] == head // per_kv_head


def test_heads_of_keys_are_only_kept_twice_where_there_are_fewer_than_ranks():
    assert [part.key_value for part in head_shards(8, 4, 3)] == [range(0, 2), range(2, 3), range(3, 4)]
    assert [part.key_value for part in head_shards(8, 2, 3)] == [range(0, 1), range(0, 1), range(1, 2)]


def test_more_ranks_than_heads_are_refused():
    with pytest.raises(ConfigError, match="4 ranks are too many for 3 attention heads"):
        head_shards(3, 3, 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("index", [None, slice(3, 9)], ids=["all", "rows"])
def test_what_is_copied_from_a_tensor_fills_the_part_of_a_matrix(index, axis):
    cut = ShardSlice(axis, (range(1, 4), range(6, 8)))
    assert_filled(torch.arange(120).view(12, 10), CheckpointSlice("weight", index), cut)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", [None, (2, slice(3, 9)), (0, slice(0, 12))], ids=str)
def test_what_is_copied_from_a_tensor_fills_the_part_of_experts(index, axis):
    assert_filled(
        torch.arange(600).view(5, 12, 10), CheckpointSlice("weight", index), ShardSlice(axis, (shifted(range(3), 1),))
    )


def test_an_uncut_parameter_is_copied_whole():
    assert_filled(torch.arange(120).view(12, 10), CheckpointSlice("weight", slice(3, 9)), None)


def test_a_tensor_for_other_ranks_is_not_needed():
    assert not copies_for_shard(CheckpointSlice("weight", slice(0, 4)), (12, 10), ShardSlice(0, (range(4, 12),)))
    assert not copies_for_shard(CheckpointSlice("weight", (4, slice(0, 4))), (5, 12, 10), ShardSlice(0, (range(0, 4),)))


def assert_filled(whole, place, cut):
    """Fill a rank's part from the one tensor, and compare with what the part has of the whole where the tensor was."""
    tensor = whole if place.index is None else whole[place.index]
    only_that = torch.full_like(whole, -1)
    only_that[() if place.index is None else place.index] = tensor
    expected = only_that if cut is None else cut.of(only_that)
    part = torch.full_like(expected, -1)
    for piece in copies_for_shard(place, whole.shape, cut):
        part[piece.target] = tensor[piece.source]
    assert torch.equal(part, expected)
