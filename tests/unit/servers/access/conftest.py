from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from rayinfer.access.access_control import AccessControl
from rayinfer.access.access_owner import AccessOwner
from rayinfer.access.api_key import KeyLimits, Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.access.owner_messages import NamedUsage, OwnerUpdate, RouterReport
from rayinfer.access.usage_log import UsageLog, usage_log_path
from rayinfer.servers.app import build_app
from rayinfer.traces.trace_store import TraceStore

BODY = {"model": "org/tiny", "prompt": "Once", "max_tokens": 3}


class LocalOwner:
    """An owner of shared state in this process."""

    def __init__(self, path: Path) -> None:
        self.owner = AccessOwner(path)

    async def sync(self, report: RouterReport) -> OwnerUpdate:
        """Call the owner."""
        return self.owner.sync(report)

    async def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Call the owner."""
        return self.owner.usage(first_day, key_id)


@dataclass
class Guarded:
    """An application with keys, and what a test needs of it."""

    app: FastAPI
    access: AccessControl
    keys: KeyFile

    async def key(self, name: str, *scopes: Scope, **limits: object) -> str:
        """Make a key and return its secret."""
        secret = self.keys.create(name, scopes=scopes or (Scope.INFER,), limits=KeyLimits(**limits))
        await self.access.synchronize()
        return secret

    def last_used_s(self) -> dict[str, float]:
        """Return when keys were last used, by id, as it is on disk."""
        log = UsageLog(usage_log_path(self.keys.path))
        try:
            return log.last_used_s()
        finally:
            log.close()

    def client(self, secret: str | None = None) -> httpx.AsyncClient:
        """Return a client with this key."""
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers)


@pytest.fixture
def guarded(models, metrics, tmp_path) -> Guarded:
    keys = KeyFile(tmp_path / "api-keys.jsonl")
    access = AccessControl("router", LocalOwner(keys.path))
    traces = TraceStore()
    app = build_app(
        models, metrics, traces=traces, enable_engine_control=True, access=access, price_per_engine_hour=3.6
    )
    return Guarded(app, access, keys)
