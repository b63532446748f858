import httpx
import pytest

from rayinfer.servers.app import build_app

BODY = {"model": "org/tiny", "prompt": "Once", "max_tokens": 2}


async def ask(app, headers):
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.post("/v1/completions", json=BODY, headers=headers)


async def test_the_tenant_header_is_ignored_unless_it_is_trusted(app, models, metrics, generator):
    assert (await ask(app, {"x-tenant-id": "alice"})).status_code == 200
    assert (await ask(app, {"x-tenant-id": "a b"})).status_code == 200
    assert [request.tenant for request in generator.requests] == ["", ""]

    trusting = build_app(models, metrics, trusts_tenant_header=True)
    assert (await ask(trusting, {"x-tenant-id": "team/alice@example.org"})).status_code == 200
    assert (await ask(trusting, {})).status_code == 200
    assert [request.tenant for request in generator.requests[2:]] == ["team/alice@example.org", ""]


@pytest.mark.parametrize(
    "headers",
    [
        [("x-tenant-id", "")],
        [("x-tenant-id", "a b")],
        [("x-tenant-id", "x" * 129)],
        [("x-tenant-id", "a"), ("x-tenant-id", "b")],
        [("x-tenant-id", b"\xff")],
    ],
    ids=str,
)
async def test_a_name_that_is_none_is_refused_before_any_work(models, metrics, generator, headers):
    answer = await ask(build_app(models, metrics, trusts_tenant_header=True), headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-tenant-id")
    assert generator.requests == []
