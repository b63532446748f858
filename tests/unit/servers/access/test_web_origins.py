from dataclasses import replace

import httpx
import pytest

from rayinfer.servers.access.web_origins import OriginPolicy, is_loopback
from rayinfer.servers.app import build_app
from support.fakes.fake_engine_client import FakeEngineClient

BODY = {"model": "org/tiny", "prompt": "Once", "max_tokens": 3}
OWN = "http://127.0.0.1:8000"


def client_of(models, metrics, *, client="127.0.0.1", **policy):
    app = build_app(models, metrics, enable_engine_control=True, origins=OriginPolicy(**policy))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(client, 5))
    return httpx.AsyncClient(transport=transport, base_url=OWN)


async def status_of(client, headers, path="/v1/completions", method="POST", json=BODY):
    async with client:
        response = await client.request(method, path, headers=headers, json=json if method == "POST" else None)
    return response.status_code


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": OWN}, 200),
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, 200),
        ({"Origin": "https://localhost", "Host": "localhost"}, 200),
        ({"Origin": "http://page.example"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://rebound.example:8000", "Host": "rebound.example:8000"}, 403),
        ({"Origin": "http://gpu.example:8000", "Host": "gpu.example:8000"}, 200),
        ({"Origin": "https://allowed.example"}, 200),
        ({"Origin": "https://allowed.example", "Host": "service.namespace.svc"}, 200),
        ({"Host": "service.namespace.svc:8000"}, 200),
    ],
)
async def test_pages_of_other_sites_may_change_nothing(models, metrics, headers, status):
    client = client_of(models, metrics, cors_origins=["https://allowed.example"], allowed_hosts=["gpu.example"])
    assert await status_of(client, headers) == status


async def test_a_page_that_names_no_origin_is_one_of_other_sites(models, metrics):
    async with client_of(models, metrics) as client:
        refused = await client.post("/v1/completions", headers={"Sec-Fetch-Site": "cross-site"}, json=BODY)
    assert refused.json()["error"]["message"].startswith("Web pages of other sites may not use this service")


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/models", "/v1/requests", "/health"])
@pytest.mark.parametrize(
    ("host", "is_allowed"), [("rebound.example", False), ("127.0.0.1:8000", True), ("[::1]", True)]
)
async def test_a_local_service_answers_to_its_own_names(models, metrics, path, host, is_allowed):
    client = client_of(models, metrics, is_local=True)
    async with client, client.stream("GET", path, headers={"Host": host}) as response:
        assert (response.status_code == 403) is not is_allowed


async def test_operators_without_keys_are_on_the_machine(models, metrics):
    models["org/tiny"] = replace(models["org/tiny"], engines=FakeEngineClient())
    for client, headers, status in [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.0.2.7", {}, 403),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, 403),
        ("127.0.0.1", {"Origin": "http://page.example"}, 403),
    ]:
        assert await status_of(client_of(models, metrics, client=client), headers, "/pause") == status, client
    assert await status_of(client_of(models, metrics, client="192.0.2.7"), {}) == 200


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_loopback_addresses_are_known(address, expected):
    assert is_loopback(address) is expected
