"""Placement of an engine's ranks: their bundles of the replica's placement group, and the nodes on which these lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import ray

PlacementStrategy = Literal["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]  # Ray's
STRATEGIES: tuple[PlacementStrategy, ...] = get_args(PlacementStrategy)
ONE_NODE: PlacementStrategy = "STRICT_PACK"


def ranks_per_bundle(strategy: PlacementStrategy, tensor_parallel_size: int, pipeline_parallel_size: int) -> int:
    """Return how many ranks share a bundle, and with it a node.

    Where stages are spread, the tensor ranks of each stay together: they exchange far more than stages do.
    """
    is_spread = strategy in ("SPREAD", "STRICT_SPREAD")
    return tensor_parallel_size if is_spread and pipeline_parallel_size > 1 else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlacement:
    """Bundle and node of each rank."""

    bundles: tuple[int, ...]  # by rank
    nodes: tuple[str, ...]  # by rank; equal names where all lie on one node

    @property
    def spans_nodes(self) -> bool:
        """Return whether ranks of the engine have to reach each other over the network."""
        return len(set(self.nodes)) > 1

    @property
    def most_on_one_node(self) -> int:
        """Return the number of ranks on the node that has most of them."""
        return max(self.nodes.count(node) for node in self.nodes)

    def shares_node_with_first(self, rank: int) -> bool:
        """Return whether a rank lies on the node of the first rank, which is the replica's."""
        return self.nodes[rank] == self.nodes[0]


def on_one_node(num_ranks: int) -> RankPlacement:
    """Return the placement of ranks with a bundle each on one node."""
    return RankPlacement(bundles=tuple(range(num_ranks)), nodes=("",) * num_ranks)


def place_ranks(num_ranks: int, per_bundle: int, node_of_bundle: Mapping[int, str]) -> RankPlacement:
    """Assign ranks to bundles, neighbors to one node where possible; the first has bundle 0, as the replica has."""
    first = node_of_bundle[0]
    in_order: Sequence[str] = list(dict.fromkeys([first, *(node_of_bundle[each] for each in sorted(node_of_bundle))]))
    by_node = sorted(node_of_bundle, key=lambda bundle: (in_order.index(node_of_bundle[bundle]), bundle))
    bundles = tuple(by_node[rank // per_bundle] for rank in range(num_ranks))
    return RankPlacement(bundles=bundles, nodes=tuple(node_of_bundle[bundle] for bundle in bundles))


def current_placement(strategy: PlacementStrategy, num_ranks: int, per_bundle: int) -> RankPlacement:
    """Return the placement of the ranks in this process's own placement group."""
    if strategy == ONE_NODE or num_ranks == 1:
        return on_one_node(num_ranks)
    table = ray.util.placement_group_table(ray.util.get_current_placement_group())
    return place_ranks(num_ranks, per_bundle, table["bundles_to_node_id"])
