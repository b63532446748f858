"""Ray actor on the head node that owns files and batches."""

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from rayinfer.batches.owner import BatchOwner
from rayinfer.batches.records import Batch, BatchLimits, NewBatch, RunnerReport, RunnerUpdate, StoredFile
from rayinfer.batches.store import DATABASE
from rayinfer.errors import RayinferError, Unavailable
from rayinfer_deployments.router.access_owner_actor import HEAD_NODE

ACTOR_PREFIX = "rayinfer_batches:"
DEFAULT_LIMITS = BatchLimits()


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSettings:
    """Folder and limits of files and batches."""

    folder: str
    limits: BatchLimits = DEFAULT_LIMITS

    def is_used(self) -> bool:
        """Return whether the folder has batches, as far as this node sees it."""
        return (Path(self.folder) / DATABASE).exists()


class BatchOwnerActor:
    """Process of the owner; it ends with the router that started it, and another router starts it anew."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._owner: BatchOwner | None = None
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the owner; returns errors of callers, which Ray would wrap."""
        try:
            return getattr(self._opened(), method)(*arguments)
        except RayinferError as error:
            return error

    def _opened(self) -> BatchOwner:
        """Return the owner; raises Unavailable while another service has its folder."""
        with self._lock:
            if self._owner is None:
                self._owner = BatchOwner(Path(self._settings.folder), limits=self._settings.limits)
            return self._owner


class RemoteBatches:
    """The owner's actor as a router calls it; starts it where it is not there."""

    def __init__(self, application: str, settings: BatchSettings) -> None:
        self._name = ACTOR_PREFIX + application
        self._settings = settings
        self._actor: Any = None

    async def begin_file(self, owner: str, filename: str, purpose: str, expires_after_s: float | None) -> str:
        """See `SharedBatches`."""
        file_id: str = await self._call("begin_file", owner, filename, purpose, expires_after_s)
        return file_id

    async def append_file(self, file_id: str, offset: int, content: bytes) -> None:
        """See `SharedBatches`."""
        await self._call("append_file", file_id, offset, content)

    async def finish_file(self, file_id: str) -> StoredFile:
        """See `SharedBatches`."""
        file: StoredFile = await self._call("finish_file", file_id)
        return file

    async def find_file(self, owner: str, file_id: str) -> StoredFile:
        """See `SharedBatches`."""
        file: StoredFile = await self._call("find_file", owner, file_id)
        return file

    async def list_files(self, owner: str, purpose: str | None) -> list[StoredFile]:
        """See `SharedBatches`."""
        files: list[StoredFile] = await self._call("list_files", owner, purpose)
        return files

    async def read_file(self, owner: str, file_id: str, offset: int, num_bytes: int) -> bytes:
        """See `SharedBatches`."""
        content: bytes = await self._call("read_file", owner, file_id, offset, num_bytes)
        return content

    async def delete_file(self, owner: str, file_id: str) -> None:
        """See `SharedBatches`."""
        await self._call("delete_file", owner, file_id)

    async def create_batch(self, new: NewBatch) -> Batch:
        """See `SharedBatches`."""
        batch: Batch = await self._call("create_batch", new)
        return batch

    async def find_batch(self, owner: str, batch_id: str) -> Batch:
        """See `SharedBatches`."""
        batch: Batch = await self._call("find_batch", owner, batch_id)
        return batch

    async def list_batches(self, owner: str) -> list[Batch]:
        """See `SharedBatches`."""
        batches: list[Batch] = await self._call("list_batches", owner)
        return batches

    async def cancel_batch(self, owner: str, batch_id: str) -> Batch:
        """See `SharedBatches`."""
        batch: Batch = await self._call("cancel_batch", owner, batch_id)
        return batch

    async def sync(self, report: RunnerReport) -> RunnerUpdate:
        """See `SharedBatches`."""
        update: RunnerUpdate = await self._call("sync", report)
        return update

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._start)
        try:
            result = await self._actor.call.remote(method, *arguments)
        except ActorDiedError as error:
            self._actor = None  # its router is gone: the next call starts another
            raise Unavailable("Files and batches cannot be reached now.") from error
        except RayActorError as error:
            raise Unavailable("Files and batches cannot be reached now.") from error
        if isinstance(result, RayinferError):
            raise result
        return result

    def _start(self) -> Any:
        """Return the actor of the name, started by whichever router comes first."""
        actor = ray.remote(BatchOwnerActor).options(
            name=self._name, get_if_exists=True, num_cpus=0, resources=HEAD_NODE, max_restarts=-1
        )
        return actor.remote(self._settings)
