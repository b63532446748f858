"""Detection of engines that Ray cannot place for want of CPUs or GPUs."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray import serve
from ray.util import placement_group_table

from rayinfer.errors import RayinferError

UNPLACED_LIMIT_S = 5.0  # enough for resources of replicas that are stopping to be freed and taken
CHECK_INTERVAL_S = 0.5
UNPLACEABLE = ("NO_RESOURCES", "INFEASIBLE")  # scheduling states of Ray for a group that it cannot place

Table = Mapping[str, Mapping[str, Any]]


class InsufficientResources(RayinferError):
    """No node of the cluster has the free CPUs or GPUs that another engine needs."""


class PlacementWatcher:
    """Watcher of unplaced engines while the replica counts of some deployments are being changed."""

    def __init__(
        self,
        application: str,
        deployments: Collection[str],
        table: Callable[[], Table] = placement_group_table,
        is_any_replica_stopping: Callable[[str], bool] | None = None,
        limit_s: float = UNPLACED_LIMIT_S,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self._application = application
        self._deployments = deployments
        self._table = table
        self._is_any_replica_stopping = is_any_replica_stopping or _is_any_replica_stopping
        self._limit_s = limit_s
        self._check_interval_s = check_interval_s
        self._unplaced_since: float | None = None
        self._checked_s = 0.0

    async def check(self) -> None:
        """Raise InsufficientResources once an engine has waited too long and no replica is stopping."""
        now = time.monotonic()
        if now - self._checked_s < self._check_interval_s:
            return
        self._checked_s = now
        waiting = await asyncio.to_thread(self._unplaced_now)
        if not waiting:
            self._unplaced_since = None
            return
        self._unplaced_since = self._unplaced_since or now
        if now - self._unplaced_since >= self._limit_s:
            count = f"{len(waiting)} engine{'' if len(waiting) == 1 else 's'}"
            needed = ", ".join(sorted(set(waiting)))
            raise InsufficientResources(f"no resources for {count}: no node has {needed} free")

    def _unplaced_now(self) -> list[str]:
        """Return the resources that each unplaced engine needs."""
        waiting = unplaced_engines(self._application, self._deployments, self._table())
        return waiting if waiting and not self._is_any_replica_stopping(self._application) else []


def unplaced_engines(application: str, deployments: Collection[str], table: Table) -> list[str]:
    """List the engines of these deployments that Ray cannot place, with the resources that each needs on one node."""
    names = tuple(f"SERVE_REPLICA::{application}#{deployment}#" for deployment in deployments)
    return [
        _total(group["bundles"].values())
        for group in table.values()
        if group["name"].startswith(names)
        and group["state"] in ("PENDING", "RESCHEDULING")
        and group["stats"]["scheduling_state"] in UNPLACEABLE
    ]


def _total(bundles: Any) -> str:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return " and ".join(f"{amount:g} {name}" for name, amount in sorted(total.items()))


def _is_any_replica_stopping(application: str) -> bool:
    overview = serve.status().applications.get(application)
    deployments = [] if overview is None else list(overview.deployments.values())
    return any(deployment.replica_states.get("STOPPING", 0) for deployment in deployments)
