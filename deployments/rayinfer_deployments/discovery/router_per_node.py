"""Autoscaling policy for Serve that keeps a router on every node.

Serve pickles this module by value for its controller, so it keeps no state of its own.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from rayinfer_deployments.cluster.cluster_nodes import ClusterNode, draining_nodes, living_nodes

LOOK_INTERVAL_S = 1.0
MAX_ROUTERS = 1024


def count_places(nodes: Sequence[ClusterNode], draining: set[str], num_cpus: float) -> int:
    """Count the nodes that stay and can hold a router."""
    return sum(node.num_cpus >= num_cpus and node.node_id not in draining for node in nodes)


def find_places(num_cpus: float) -> int:
    """Count them on the cluster that this process is part of."""
    return count_places(living_nodes(), draining_nodes(), num_cpus)


class RouterPerNodePolicy:
    """Custom autoscaling policy, which Serve's controller calls ten times a second."""

    def __init__(self, num_cpus: float, count: Callable[[float], int] = find_places) -> None:
        self._num_cpus = num_cpus
        self._count = count
        self._known: int | None = None
        self._looked_s = float("-inf")

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of routers that there should be; the last one where Ray does not answer."""
        if context.current_time >= self._looked_s + LOOK_INTERVAL_S:
            self._looked_s = context.current_time
            with contextlib.suppress(Exception):  # Serve's controller has more to do; Ray's table may be restarting
                self._known = max(1, self._count(self._num_cpus))
        return self._known or context.target_num_replicas, {}


def router_on_every_node(num_cpus: float) -> dict[str, Any]:
    """Make Serve's options for a deployment that has a replica on each node with room for it."""
    policy = AutoscalingPolicy(policy_function=RouterPerNodePolicy, policy_kwargs={"num_cpus": num_cpus})
    return {
        "max_replicas_per_node": 1,
        "max_surge_percent": 0,  # a node has no room for a second one: those of other nodes serve meanwhile
        "autoscaling_config": AutoscalingConfig(
            min_replicas=1,
            max_replicas=MAX_ROUTERS,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=policy,
        ),
    }
