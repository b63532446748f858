"""Shared memory of KV block stores, freed when a service ends with its Ray."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rayinfer.config import shared_memory_folder
from rayinfer.kv_store.file_locks import delete_unused
from rayinfer.kv_store.store_files import list_stores

WAIT_S = 5.0  # for the system to end killed engines
POLL_S = 0.1


@contextlib.contextmanager
def freed_stores(settings: Mapping[str, Any], wait_s: float = WAIT_S) -> Iterator[None]:
    """On leaving, delete the stores in shared memory that were used meanwhile, if engines with these settings do so.

    Engines that end with their Ray are killed and delete nothing. Stores that are still in use after `wait_s` stay:
    they are another service's too.
    """
    since_s = time.time()
    try:
        yield
    finally:
        if settings.get("kv_store_gib") and not settings.get("kv_store_persists"):
            latest = time.monotonic() + wait_s
            used = [Path(store.path) for store in list_stores(shared_memory_folder()) if store.last_used_s >= since_s]
            while (used := [path for path in used if not delete_unused(path)]) and time.monotonic() < latest:
                time.sleep(POLL_S)
