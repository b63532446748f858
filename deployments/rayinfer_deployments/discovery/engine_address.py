"""Process-wide registry of engine addresses, between the observer of Serve's replicas and its subscribers.

Serve builds the observer itself, from a pickled copy of its class and without arguments of ours, so the registry
is the only module state.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ENGINE_PREFIX = "rayinfer-engine-"  # followed by the replica
RANK_MARK = "-rank-"  # followed by the rank; the first rank has the engine's name


@dataclass(frozen=True, kw_only=True, slots=True)
class RankName:
    """Engine and rank in an actor's name."""

    engine: str
    rank: int

    @staticmethod
    def of(actor_name: str) -> "RankName":
        """Parse an actor's name."""
        engine, _, rank = actor_name.partition(RANK_MARK)
        return RankName(engine=engine, rank=int(rank or 0))

    def __str__(self) -> str:
        """Return the actor's name."""
        return f"{self.engine}{RANK_MARK}{self.rank}" if self.rank else self.engine


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAddress:
    """Address of a replica's engine actor."""

    actor_name: str
    namespace: str

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any]) -> "EngineAddress | None":
        """Read what `EngineReplica.record_replica_metadata` wrote; None when the replica has written nothing."""
        if "engine_actor" not in metadata:
            return None
        return EngineAddress(actor_name=metadata["engine_actor"], namespace=metadata["namespace"])

    def to_metadata(self) -> dict[str, Any]:
        """Write the address as a replica's metadata."""
        return {"engine_actor": self.actor_name, "namespace": self.namespace}


Engines = Mapping[str, EngineAddress]  # by engine actor name


class _EngineRegistry:
    """The newest engines of every deployment that this process has a handle to; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, Engines] = {}
        self._readers: dict[str, list[Callable[[Engines], None]]] = {}

    def publish(self, deployment: str, engines: Engines) -> None:
        with self._lock:
            self._engines[deployment] = engines
            readers = list(self._readers.get(deployment, ()))
        for reader in readers:
            reader(engines)

    def subscribe(self, deployment: str, reader: Callable[[Engines], None]) -> None:
        with self._lock:
            self._readers.setdefault(deployment, []).append(reader)
            known = self._engines.get(deployment)
        if known is not None:
            reader(known)

    def unsubscribe(self, deployment: str, reader: Callable[[Engines], None]) -> None:
        with self._lock:
            self._readers[deployment].remove(reader)


_REGISTRY = _EngineRegistry()


def publish_engines(app_name: str, deployment_name: str, engines: Engines) -> None:
    """Publish a deployment's present engines to this process's subscribers."""
    _REGISTRY.publish(f"{app_name}#{deployment_name}", engines)


def subscribe_to_engines(app_name: str, deployment_name: str, reader: Callable[[Engines], None]) -> Callable[[], None]:
    """Call `reader`, from any thread, with the engines now and after every change; returns the unsubscribe function."""
    deployment = f"{app_name}#{deployment_name}"
    _REGISTRY.subscribe(deployment, reader)
    return lambda: _REGISTRY.unsubscribe(deployment, reader)
