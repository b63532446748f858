"""Scale from zero: routers write their queue lengths into Ray's internal KV, which Serve's controller reads.

A call that waits for a replica would bring one, whatever waits: Serve then asks no policy before that one runs.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import quote

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

from rayinfer.routing.first_tokens import NOTHING, FirstTokenCounts

LOOK_INTERVAL_S = 0.1
WRITE_INTERVAL_S = 0.5
READ_INTERVAL_S = 0.3
FORGET_S = 10.0  # a router that has written nothing for so long is gone
NAMESPACE = b"rayinfer-backlog"

logger = logging.getLogger("ray.serve")


class Table(Protocol):
    """Key-value table that routers write and Serve's controller reads."""

    def put(self, key: str, value: bytes) -> None:
        """Write a value, over another if there is one."""

    def delete(self, key: str) -> None:
        """Take a value out, if there is one."""

    def read(self, prefix: str) -> dict[str, bytes]:
        """Read all values whose keys begin with `prefix`."""


class RayTable:
    """Ray's internal key-value store, which every process of a cluster reaches."""

    def put(self, key: str, value: bytes) -> None:
        """See Table."""
        _internal_kv_put(key, value, namespace=NAMESPACE)

    def delete(self, key: str) -> None:
        """See Table."""
        _internal_kv_del(key, namespace=NAMESPACE)

    def read(self, prefix: str) -> dict[str, bytes]:
        """See Table."""
        if not _internal_kv_initialized():
            return {}
        keys = _internal_kv_list(prefix, namespace=NAMESPACE)
        values = {key.decode(): _internal_kv_get(key, namespace=NAMESPACE) for key in keys}
        return {key: value for key, value in values.items() if value is not None}


async def write_backlog(
    table: Table,
    application: str,
    deployment: str,
    router: str,
    needs_engine: Callable[[], bool],
    counts: Callable[[], FirstTokenCounts],
) -> None:
    """Keep a router's queue length in the table for as long as it needs an engine, until cancelled."""
    key, number, written_s = f"{_prefix(application, deployment)}{router}", 0, float("-inf")
    try:
        while True:
            try:
                if not needs_engine() and number:
                    number, written_s = 0, float("-inf")
                    await asyncio.to_thread(table.delete, key)
                elif needs_engine() and time.monotonic() >= written_s + WRITE_INTERVAL_S:
                    number, written_s = number + 1, time.monotonic()
                    # Without the model's limits nothing can be admitted; a router that waits for them counts as one.
                    known = counts()
                    waiting = known._replace(num_waiting=max(1, known.num_waiting))
                    await asyncio.to_thread(table.put, key, json.dumps([number, *waiting]).encode())
            except Exception:
                logger.exception("the queue length could not be written for Serve's autoscaler")
                await asyncio.sleep(WRITE_INTERVAL_S)
            await asyncio.sleep(LOOK_INTERVAL_S)
    finally:
        if number:
            await asyncio.shield(asyncio.to_thread(table.delete, key))


class Backlogs:
    """Queue lengths of a deployment's routers, as they have written them; a router that ends is forgotten.

    Whether a value is of late is judged by the reader's clock: by when it was first seen. Routers number theirs.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._read_s = float("-inf")

    def total(self, application: str, deployment: str, now_s: float) -> FirstTokenCounts:
        """Add up what the routers have written recently."""
        if now_s >= self._read_s + READ_INTERVAL_S:
            self._read_s = now_s
            self._note(self._read(_prefix(application, deployment)), now_s)
        total = NOTHING
        for key, (value, since_s) in list(self._seen.items()):
            if now_s - since_s > FORGET_S:
                self._table.delete(key)
                del self._seen[key]
            else:
                total = total.plus(FirstTokenCounts(*json.loads(value)[1:]))
        return total

    def _read(self, prefix: str) -> dict[str, bytes]:
        try:
            return self._table.read(prefix)
        except Exception:  # Serve's controller has more to do than this
            logger.exception("the routers' queue lengths could not be read")
            return {}

    def _note(self, found: Mapping[str, bytes], now_s: float) -> None:
        before, self._seen = self._seen, {}
        for key, value in found.items():
            known, since_s = before.get(key, (b"", now_s))
            self._seen[key] = (value, since_s if known == value else now_s)


def _prefix(application: str, deployment: str) -> str:
    """Escape both names so that no slash in one of them makes another deployment's prefix."""
    return f"{quote(application, safe='')}/{quote(deployment, safe='')}/"
