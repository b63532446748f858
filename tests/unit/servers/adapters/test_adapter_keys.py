"""API keys and scopes of the paths that list, load and unload adapters."""

from contextlib import asynccontextmanager

import httpx
import pytest

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import Scope
from rayinfer.access.key_file import KeyFile
from rayinfer.servers.app import build_app
from unit.servers.access.conftest import LocalOwner
from unit.servers.adapters.conftest import write_adapter

LOAD, UNLOAD, LIST = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/lora_adapters"


@pytest.fixture
async def client_of(models, metrics, registry, tmp_path):
    """Clients of a service with keys, by the scopes of theirs; None: without a key."""
    keys = KeyFile(tmp_path / "api-keys.jsonl")
    access = AccessControl("router", LocalOwner(keys.path))
    app = build_app(models, metrics, adapters=registry, access=access)

    @asynccontextmanager
    async def client(*scopes):
        secret = keys.create("-".join(scopes), scopes=scopes) if scopes else None
        await access.synchronize()
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
            yield client

    return client


async def statuses(client, folder):
    body = {"lora_name": "sql", "lora_path": str(folder)}
    answers = [
        await client.post(LOAD, json=body),
        await client.get(LIST),
        await client.post(UNLOAD, json={"lora_name": "sql"}),
    ]
    return [answer.status_code for answer in answers]


async def test_adapters_are_for_keys_with_the_scope_operate(client_of, models, tmp_path):
    folder = write_adapter(tmp_path / "loadable" / "sql")
    async with client_of(Scope.INFER, Scope.METRICS) as client:
        assert await statuses(client, folder) == [403, 403, 403]
    async with client_of() as client:
        assert await statuses(client, folder) == [401, 401, 401]
    assert "sql" not in models
    async with client_of(Scope.OPERATE) as client:
        assert await statuses(client, folder) == [200, 200, 200]


async def test_a_refused_key_cannot_unload_what_an_operator_has_loaded(client_of, models, tmp_path):
    folder = write_adapter(tmp_path / "loadable" / "sql")
    async with client_of(Scope.OPERATE) as operator, client_of(Scope.INFER) as other:
        loaded = await operator.post(LOAD, json={"lora_name": "sql", "lora_path": str(folder)})
        assert loaded.status_code == 200
        assert (await other.post(UNLOAD, json={"lora_name": "sql"})).status_code == 403
        assert "sql" in models
        assert (await other.post("/v1/completions", json={"model": "sql", "prompt": "hi"})).status_code == 200


@pytest.mark.parametrize("path", [LOAD + "/", UNLOAD + "/", LIST + "/"])
async def test_a_slash_at_the_end_does_not_bypass_the_scope(client_of, path):
    async with client_of(Scope.INFER) as client:
        for method in ("GET", "POST"):
            answer = await client.request(method, path, json={}, follow_redirects=True)
            assert answer.status_code == 403, (method, answer.text)
