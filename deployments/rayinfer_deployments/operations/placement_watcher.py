"""Watch for engines that Ray cannot place for want of CPUs or GPUs."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray import serve
from ray.util import placement_group_table

from rayinfer.errors import RayinferError

WITHOUT_ROOM_S = 5.0  # after which room that others were about to leave would have been taken
LOOK_INTERVAL_S = 0.5
NO_ROOM = ("NO_RESOURCES", "INFEASIBLE")  # what Ray's scheduler says of a group that it cannot place

Table = Mapping[str, Mapping[str, Any]]


class NoRoom(RayinferError):
    """The cluster has not the CPUs or GPUs, on one node, that another engine needs."""


class RoomWatch:
    """Watcher of unplaced engines while the replica counts of some deployments are being changed."""

    def __init__(
        self,
        application: str,
        deployments: Collection[str],
        table: Callable[[], Table] = placement_group_table,
        is_anybody_leaving: Callable[[str], bool] | None = None,
        without_room_s: float = WITHOUT_ROOM_S,
    ) -> None:
        self._application = application
        self._deployments = deployments
        self._table = table
        self._is_anybody_leaving = is_anybody_leaving or _is_anybody_leaving
        self._without_room_s = without_room_s
        self._without_room_since: float | None = None
        self._looked_s = 0.0

    async def check(self) -> None:
        """Raise NoRoom once an engine has waited for resources for too long and no other is about to free any."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now
        waiting = await asyncio.to_thread(self._waiting)
        if not waiting:
            self._without_room_since = None
            return
        self._without_room_since = self._without_room_since or now
        if now - self._without_room_since >= self._without_room_s:
            count = f"{len(waiting)} engine{'' if len(waiting) == 1 else 's'}"
            raise NoRoom(f"there is no room for {count}: no node has {', '.join(sorted(set(waiting)))} free")

    def _waiting(self) -> list[str]:
        """Return the resources that each unplaced engine needs."""
        waiting = waiting_for_room(self._application, self._deployments, self._table())
        return waiting if waiting and not self._is_anybody_leaving(self._application) else []


def waiting_for_room(application: str, deployments: Collection[str], table: Table) -> list[str]:
    """List the engines of these deployments that Ray cannot place, with the resources that each needs on one node."""
    names = tuple(f"SERVE_REPLICA::{application}#{deployment}#" for deployment in deployments)
    return [
        _total(group["bundles"].values())
        for group in table.values()
        if group["name"].startswith(names)
        and group["state"] in ("PENDING", "RESCHEDULING")
        and group["stats"]["scheduling_state"] in NO_ROOM
    ]


def _total(bundles: Any) -> str:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return " and ".join(f"{amount:g} {name}" for name, amount in sorted(total.items()))


def _is_anybody_leaving(application: str) -> bool:
    overview = serve.status().applications.get(application)
    deployments = [] if overview is None else list(overview.deployments.values())
    return any(deployment.replica_states.get("STOPPING", 0) for deployment in deployments)
