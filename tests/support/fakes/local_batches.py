"""The owner of batches in this process, as a router calls it; it may be away."""

import asyncio
from typing import Any

from rayinfer.batches.owner import BatchOwner
from rayinfer.errors import Unavailable


class LocalBatches:
    """Calls an owner in a thread."""

    def __init__(self, owner: BatchOwner) -> None:
        self.owner: BatchOwner | None = owner

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: object) -> Any:
            if self.owner is None:
                raise Unavailable("Files and batches cannot be reached now.")
            return await asyncio.to_thread(getattr(self.owner, method), *arguments)

        return call
