"""Live view by the rights of its caller's key."""

import json

import httpx
import pytest

from rayinfer.access.api_key import Scope
from rayinfer.servers.web.live import OTHER_TENANTS
from support.services.served_application import served


async def first_sample(app, secret):
    headers = {"Authorization": f"Bearer {secret}"}
    with served(app) as url:
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            client.stream("GET", f"{url}/live", headers=headers) as response,
        ):
            return json.loads((await anext(response.aiter_lines())).removeprefix("data: "))


@pytest.mark.parametrize(
    ("scopes", "tenants"),
    [((Scope.INFER,), {"alice", OTHER_TENANTS}), ((Scope.INFER, Scope.OPERATE), {"alice", "bob"})],
)
async def test_a_key_sees_queues_and_actions_of_its_scope(guarded, metrics, scopes, tenants):
    secret = await guarded.key("alice", *scopes)
    metrics.queued_by("org/tiny")["alice", 2] = 1
    metrics.queued_by("org/tiny")["bob", 2] = 1
    sample = await first_sample(guarded.app, secret)
    assert {row["tenant"] for row in sample["models"]["org/tiny"]["queue"]} == tenants
    assert sample["may_operate"] is (Scope.OPERATE in scopes)
