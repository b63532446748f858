"""Nodes by the names that operators know."""

import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.cluster_nodes import ClusterNode, find_node

NODES = [
    ClusterNode(node_id="aa11bb22cc", address="10.0.0.1", name="head", is_head=True, num_cpus=0),
    ClusterNode(node_id="aa11bb99dd", address="10.0.0.2", name="worker", is_head=False, num_cpus=4),
    ClusterNode(node_id="ff00ff00ff", address="10.0.0.3", name="worker", is_head=False, num_cpus=4),
]


@pytest.mark.parametrize(("name", "index"), [("10.0.0.2", 1), ("head", 0), ("ff00ff", 2), ("aa11bb9", 1)])
def test_a_node_is_found_by_address_name_or_id(name, index):
    assert find_node(name, NODES) == NODES[index]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("worker", "more than one"), ("aa11bb", "more than one"), ("aa", "no node"), ("x", "no node")],
)
def test_other_names_are_refused_with_those_there_are(name, complaint):
    with pytest.raises(RayinferError, match=rf"{complaint}.*10\.0\.0\.3 \(ff00ff00ff\)"):
        find_node(name, NODES)
