"""Placement of ranks: neighbors share nodes, and tensor ranks of a stage stay together."""

import pytest

from rayinfer_deployments.engine.rank_placement import current_placement, on_one_node, place_ranks, ranks_per_bundle


def test_ranks_of_one_node_are_neighbors():
    placement = place_ranks(4, 1, {0: "b", 1: "a", 2: "b", 3: "a"})
    assert placement.bundles == (0, 2, 1, 3)
    assert placement.nodes == ("b", "b", "a", "a")
    assert placement.spans_nodes
    assert placement.most_on_one_node == 2
    assert [placement.shares_node_with_first(rank) for rank in range(4)] == [True, True, False, False]


def test_the_first_rank_keeps_the_bundle_of_the_replica():
    assert place_ranks(3, 1, {2: "a", 1: "a", 0: "c"}).bundles == (0, 1, 2)


@pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_SPREAD"])
def test_tensor_ranks_of_a_spread_stage_share_a_bundle(strategy):
    assert ranks_per_bundle(strategy, 2, 2) == 2
    assert ranks_per_bundle(strategy, 2, 1) == 1  # over nodes, as nothing else could be
    placement = place_ranks(4, 2, {0: "a", 1: "b"})
    assert placement.bundles == (0, 0, 1, 1)
    assert placement.nodes == ("a", "a", "b", "b")


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK"])
def test_packed_ranks_have_a_bundle_each(strategy):
    assert ranks_per_bundle(strategy, 2, 2) == 1


def test_an_engine_of_one_node_asks_no_ray():
    assert current_placement("STRICT_PACK", 4, 1) == on_one_node(4)
    assert current_placement("SPREAD", 1, 1) == on_one_node(1)
    assert not on_one_node(4).spans_nodes
    assert on_one_node(4).most_on_one_node == 4
