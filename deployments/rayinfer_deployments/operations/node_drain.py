"""Drain of a node: its streams and engines move to other nodes before it leaves."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from ray._private.state import actors  # the public function needs the dashboard

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.cluster_nodes import find_node, living_nodes, request_drain
from rayinfer_deployments.discovery.engine_address import ENGINE_PREFIX, RankName
from rayinfer_deployments.operations.control_socket import Operation

POLL_S = 0.3
REPLICA_PREFIX = "SERVE_REPLICA::"
REASON = "drained by rayinfer"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedActor:
    """A living actor of a service, and its node."""

    name: str
    node_id: str


class NodeDrain:
    """Operator's command that empties a node of one application's replicas and engines."""

    def __init__(self, application: str) -> None:
        self._application = application

    def by_name(self) -> dict[str, Operation]:
        """Return the command by its name on the control socket."""
        return {"drain_node": self.drain_node}

    async def drain_node(self, node: str, deadline_s: float) -> dict[str, Any]:
        """Have Ray and Serve move everything off a node, and wait until it is empty.

        New engines start elsewhere before the old ones leave, as far as there is room within the deadline. Raises
        RayinferError for the head node and for the last one, and when the node is not empty in time.
        """
        nodes = await asyncio.to_thread(living_nodes)
        drained = find_node(node, nodes)
        if drained.is_head:
            raise RayinferError(f"node {drained} is the head, which holds Serve's controller: it cannot be drained")
        if not any(each.num_cpus > 0 and each.node_id != drained.node_id for each in nodes):
            raise RayinferError(f"node {drained} is the only one that runs engines: add another first")
        moved = on_node(await asyncio.to_thread(placed_actors, self._application), drained.node_id)
        await asyncio.to_thread(request_drain, drained, deadline_s, REASON)
        latest = time.monotonic() + deadline_s
        while left := on_node(await asyncio.to_thread(placed_actors, self._application), drained.node_id):
            if time.monotonic() > latest:
                raise RayinferError(
                    f"node {drained} still has {', '.join(left)} after {deadline_s:.0f} s; see `rayinfer status`"
                )
            await asyncio.sleep(POLL_S)
        return {"node": str(drained), "moved": moved}


def on_node(placed: list[PlacedActor], node_id: str) -> list[str]:
    """Return the names of the actors on a node."""
    return sorted(actor.name for actor in placed if actor.node_id == node_id)


def placed_actors(application: str) -> list[PlacedActor]:
    """List the replicas of an application, and the ranks of its engines, with their nodes."""
    return living_in(actors().values(), application)


def living_in(table: Any, application: str) -> list[PlacedActor]:
    """Pick an application's replicas and engines out of Ray's table of actors."""
    alive = [row for row in table if row["State"] == "ALIVE"]
    prefix = f"{REPLICA_PREFIX}{application}#"
    replicas = {row["Name"].rpartition("#")[2] for row in alive if row["Name"].startswith(prefix)}
    return [
        PlacedActor(name=_shown(row["Name"]), node_id=row["Address"]["NodeID"])
        for row in alive
        if row["Name"].startswith(prefix) or _replica_of(row["Name"]) in replicas
    ]


def _replica_of(actor_name: str) -> str | None:
    if not actor_name.startswith(ENGINE_PREFIX):
        return None
    return RankName.of(actor_name).engine.removeprefix(ENGINE_PREFIX)


def _shown(actor_name: str) -> str:
    return actor_name.removeprefix(REPLICA_PREFIX).partition("#")[2] or actor_name
