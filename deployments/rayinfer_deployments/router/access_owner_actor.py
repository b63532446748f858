"""Ray actor on the head node that owns what routers share: keys, counts and usage."""

import asyncio
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError

from rayinfer.access.access_owner import AccessOwner
from rayinfer.access.api_key import environment_keys
from rayinfer.access.owner_messages import NamedUsage, OwnerUpdate, RouterReport
from rayinfer.config import environment_api_keys

ACTOR_PREFIX = "rayinfer_access:"
HEAD_NODE = {"node:__internal_head__": 0.001}  # Ray's mark of the head node


class AccessOwnerActor:
    """Process of the owner; it ends with the router that started it, and another router starts it anew."""

    def __init__(self, key_file: str) -> None:
        self._owner = AccessOwner(Path(key_file), environment_keys=environment_keys(environment_api_keys()))

    def sync(self, report: RouterReport) -> OwnerUpdate:
        """Take a router's report and return what it does not know yet."""
        return self._owner.sync(report)

    def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Return the usage since a day, of one key or of all."""
        return self._owner.usage(first_day, key_id)


class RemoteOwner:
    """The owner's actor as a router calls it; starts it where it is not there."""

    def __init__(self, application: str, key_file: str) -> None:
        self._name = ACTOR_PREFIX + application
        self._key_file = key_file
        self._actor: Any = None

    async def sync(self, report: RouterReport) -> OwnerUpdate:
        """Call the owner."""
        update: OwnerUpdate = await self._call("sync", report)
        return update

    async def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Call the owner."""
        usage: NamedUsage = await self._call("usage", first_day, key_id)
        return usage

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._start)
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except ActorDiedError:
            self._actor = None  # its router is gone: the next call starts another
            raise

    def _start(self) -> Any:
        """Return the actor of the name, started by whichever router comes first."""
        actor = ray.remote(AccessOwnerActor).options(
            name=self._name, get_if_exists=True, num_cpus=0, resources=HEAD_NODE, max_restarts=-1
        )
        return actor.remote(self._key_file)
