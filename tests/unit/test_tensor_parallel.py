"""Rank coordinates, shards of each rank, and collectives over gloo."""

import pytest
import torch

from rayinfer.errors import ConfigError
from rayinfer.tensor_parallel import UNSHARDED, RankCoordinates, Shard, SingleRankGroup, even_parts, split
from support.services.gloo_ranks import run_processes

NUM_RANKS = 3


def test_a_place_knows_its_stage_and_its_rank_there():
    places = [RankCoordinates(rank, tensor_parallel_size=2, pipeline_parallel_size=3) for rank in range(6)]
    assert [(place.stage, place.tensor_rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [place.is_first_stage for place in places] == [True, True, False, False, False, False]
    assert [place.is_last_stage for place in places] == [False, False, False, False, True, True]
    assert {place.world_size for place in places} == {6}


def test_the_whole_is_one_rank_of_one():
    assert UNSHARDED.is_unsharded
    assert not Shard(RankCoordinates(1, 1, 2), SingleRankGroup()).is_unsharded
    x = torch.randn(3, 4)
    assert torch.equal(UNSHARDED.group.all_reduce(x), x)
    assert torch.equal(UNSHARDED.group.all_gather(x, [4]), x)
    assert torch.equal(UNSHARDED.group.all_to_all(x, [3], [3]), x)


def test_parts_are_as_even_as_they_can_be():
    assert even_parts(7, 3) == [range(0, 3), range(3, 5), range(5, 7)]
    assert even_parts(1, 3) == [range(0, 1), range(1, 1), range(1, 1)]
    assert split(7, 2, "heads") == [range(0, 4), range(4, 7)]


def test_units_stay_together_where_there_are_enough():
    assert split(100, 2, "channels", 32) == [range(0, 64), range(64, 100)]
    assert split(96, 3, "channels", 32) == [range(0, 32), range(32, 64), range(64, 96)]
    assert split(50, 3, "channels", 32) == [range(0, 17), range(17, 34), range(34, 50)]


def test_more_parts_than_numbers_are_refused_by_name():
    with pytest.raises(ConfigError, match="3 ranks are too many for 2 layers"):
        split(2, 3, "layers")


def numbers(rank, dtype):
    """A rank's own, whose sums need not be exact."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(5, 4, 3, generator=generator).to(dtype)


def talk(rank):
    """Use every collective with every dtype; returns what came of each."""
    said, group = {}, rank.shard().group
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        own = numbers(group.rank, dtype)
        said["all", dtype] = group.all_reduce(own.clone())
        said["some", dtype] = group.all_reduce(own[1:2, 1:].clone())
        said["turned", dtype] = group.all_reduce(own.clone().transpose(0, 1))
        said["side by side", dtype] = group.all_gather(own[..., : group.rank + 1], [1, 2, 3])
        sent = [0, group.rank, 5 - group.rank]
        received = [other if group.rank == 1 else 5 - other if group.rank == 2 else 0 for other in range(group.size)]
        said["rows", dtype] = group.all_to_all(own, sent, received)
        said["nothing", dtype] = group.all_to_all(own[:0], [0] * group.size, [0] * group.size)
    return said


@pytest.fixture(scope="module")
def by_rank():
    return run_processes(NUM_RANKS, talk)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_processes_sum_exchange_and_gather(dtype, by_rank):
    own = [numbers(rank, dtype) for rank in range(NUM_RANKS)]
    total = sum(each.float() for each in own).to(dtype)
    rows = [torch.empty(0, 4, 3).to(dtype)]
    rows.append(torch.cat([each[:rank] for rank, each in enumerate(own)]))
    rows.append(torch.cat([each[rank:] for rank, each in enumerate(own)]))
    for rank, said in enumerate(by_rank):
        assert torch.equal(said["all", dtype], total)
        assert torch.equal(said["some", dtype], total[1:2, 1:])
        assert torch.equal(said["turned", dtype], total.transpose(0, 1))
        beside = torch.cat([each[..., : other + 1] for other, each in enumerate(own)], -1)
        assert torch.equal(said["side by side", dtype], beside)
        assert torch.equal(said["rows", dtype], rows[rank])
        assert said["nothing", dtype].shape == (0, 4, 3)
