"""One Ray cluster of a head and two workers for all tests of this folder, which deploy their own services on it."""

import os
import shutil

import pytest

from support.cluster.node_network import NodeNetwork
from support.cluster.ray_nodes import RayNodes
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Return the folder of a random model, which the third node does not see."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=2048)


@pytest.fixture(scope="session")
def nodes(tiny_model, tmp_path_factory):
    """Start three nodes with addresses of their own: a head without replicas, and the workers 2 and 3."""
    assert os.geteuid() == 0, "network namespaces need root"
    for program in ("ip", "redis-server", "unshare"):
        assert shutil.which(program), f"{program} is missing: apt-get install iproute2 redis-server util-linux"
    folder = tmp_path_factory.mktemp("nodes")
    hidden, labels = {3: [str(tiny_model.parent)]}, {2: "place=second", 3: "place=third"}
    with (
        NodeNetwork(3) as network,
        RayNodes(network, folder, step_s="0.02", with_redis=True, hidden=hidden, labels=labels) as nodes,
    ):
        yield nodes
