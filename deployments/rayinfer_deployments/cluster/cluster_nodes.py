"""Nodes of the Ray cluster that this process is part of, and Ray's drain requests for them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import ray
from ray._private.worker import global_worker  # a client of our own would bring threads, each time
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from rayinfer.errors import RayinferError

GCS_TIMEOUT_S = 5.0
HEAD_RESOURCE = "node:__internal_head__"
MIN_PREFIX = 6  # characters of a node's id that select it


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    """A living node."""

    node_id: str
    address: str
    name: str
    is_head: bool
    num_cpus: float  # that Ray may reserve on it

    def is_called(self, name: str) -> bool:
        """Return whether a name means this node: its address, its name, or its id or the beginning of it."""
        is_prefix = len(name) >= MIN_PREFIX and self.node_id.startswith(name)
        return name in (self.address, self.name) or is_prefix

    def __str__(self) -> str:
        """Return the address, and the beginning of the id, which distinguishes nodes."""
        return f"{self.address} ({self.node_id[:12]})"


def living_nodes() -> list[ClusterNode]:
    """List the nodes that Ray takes for alive."""
    return [
        ClusterNode(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            name=node.get("NodeName") or node["NodeManagerHostname"],
            is_head=HEAD_RESOURCE in node["Resources"],
            num_cpus=node["Resources"].get("CPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def find_node(name: str, nodes: Sequence[ClusterNode]) -> ClusterNode:
    """Find the node that a name means; raises RayinferError where none does, or several do."""
    found = [node for node in nodes if node.is_called(name)]
    if len(found) != 1:
        known = ", ".join(str(node) for node in nodes) or "none"
        raise RayinferError(f"{'more than one' if found else 'no'} node is called {name!r} (there are: {known})")
    return found[0]


def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are to leave: drained by an operator, an autoscaler, or after a spot notice."""
    return set(global_worker.gcs_client.get_draining_nodes(timeout=GCS_TIMEOUT_S))


def request_drain(node: ClusterNode, deadline_s: float, reason: str) -> None:
    """Have Ray place nothing more on a node, and Serve move its replicas; raises RayinferError if Ray refuses.

    Ray's raylet on the node ends once nothing runs there. There is no way back but to start it again.
    """
    deadline_ms = int(1000 * (time.time() + deadline_s))
    # A node that is not idle is drained for this reason alone.
    kind = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    is_accepted, refusal = global_worker.gcs_client.drain_node(node.node_id, kind, reason, deadline_ms)
    if not is_accepted:
        raise RayinferError(f"Ray does not drain node {node}: {refusal}")
