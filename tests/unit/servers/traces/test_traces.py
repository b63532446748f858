import time

import httpx
import pytest

from rayinfer.outputs import TraceEvent
from rayinfer.servers.app import build_app
from rayinfer.traces.trace_store import MAX_SAME_NAME, TraceStore

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "a secret of mine"}]


@pytest.fixture
def traces():
    return TraceStore()


@pytest.fixture
def app(models, metrics, traces):
    return build_app(models, metrics, traces=traces)


async def trace(client, name):
    response = await client.get(f"/v1/requests/{name}/trace")
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "list"
    return response.json()["data"]


async def test_a_requests_trace_is_found_by_every_name_that_its_client_knows(client, generator):
    before = time.time()
    answer = await client.post(TEXT, json={"prompt": ["a", "b"]}, headers={"x-request-id": "mine"})
    (reported,) = await trace(client, "mine")
    assert [reported] == await trace(client, answer.json()["id"])
    assert (await client.get("/v1/requests/mine/trace/")).json()["data"] == [reported]
    assert (reported["id"], reported["object"], reported["model"]) == ("cmpl-mine", "request.trace", "org/tiny")
    (received,) = reported["events"]
    assert (received["name"], received["details"]) == ("received", {"num_prompts": 2})
    assert before <= received["time_s"] <= time.time()
    assert all(request.trace for request in generator.requests)


async def test_a_request_without_a_name_of_its_own_is_found_by_the_one_it_got(client):
    answer = await client.post(CHAT, json={"messages": HELLO})
    (reported,) = await trace(client, answer.headers["x-request-id"])
    assert reported["id"] == answer.json()["id"]


@pytest.mark.parametrize("name", ["two words", "x" * 300, "a+b@c"])
async def test_a_name_that_had_to_be_cleaned_is_found_as_it_was_sent(client, name):
    await client.post(TEXT, json={"prompt": "a", "request_id": name})
    (reported,) = await trace(client, name)
    assert reported["id"] != f"cmpl-{name}"


async def test_a_trace_has_the_events_of_all_choices_in_order_without_texts(client, generator, traces):
    await client.post(TEXT, json={"prompt": ["a secret", "of mine"], "n": 2}, headers={"x-request-id": "mine"})
    now = time.time()
    for request, delay in zip(generator.requests, (2.0, 1.0), strict=True):
        traces.add_engine_events(request.request_id, 1, [TraceEvent("queued", now + delay, {"prompt_tokens": 4})])
    (reported,) = await trace(client, "mine")
    assert reported["events"][1:] == [
        {"name": "queued", "time_s": now + 1.0, "details": {"prompt": 1, "choice": 1, "prompt_tokens": 4}},
        {"name": "queued", "time_s": now + 2.0, "details": {"prompt": 0, "choice": 1, "prompt_tokens": 4}},
    ]
    assert reported["num_events_dropped"] == 0
    assert "secret" not in str(reported)


async def test_requests_of_one_name_have_separate_traces(client):
    for prompt in (["a"], ["a", "b"]):
        await client.post(TEXT, json={"prompt": prompt}, headers={"x-request-id": "same"})
    reported = await trace(client, "same")
    assert [each["events"][0]["details"]["num_prompts"] for each in reported] == [2, 1]


async def test_a_refused_request_has_no_trace(client):
    await client.post(TEXT, json={"prompt": "a", "temperature": 9}, headers={"x-request-id": "bad"})
    assert (await client.get("/v1/requests/bad/trace")).status_code == 404


@pytest.mark.parametrize("name", ["unknown", "cmpl-unknown", "%20", "x" * 3000, "..%2F..", "ü"])
async def test_an_unknown_request_is_not_found(client, name):
    response = await client.get(f"/v1/requests/{name}/trace")
    error = response.json()["error"]
    assert response.status_code == 404
    assert (error["type"], error["code"]) in (
        ("invalid_request_error", "trace_not_found"),
        ("invalid_request_error", None),  # no such path at all
    )
    assert len(response.content) < 500


async def test_a_service_that_keeps_no_traces_says_so_and_asks_for_none(models, metrics, generator):
    app = build_app(models, metrics)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        await client.post(TEXT, json={"prompt": "a"}, headers={"x-request-id": "mine"})
        response = await client.get("/v1/requests/mine/trace")
    assert response.status_code == 404
    assert "trace_requests=false" in response.json()["error"]["message"]
    assert not generator.requests[0].trace


@pytest.mark.parametrize("name", ["x-request-id", "answer"])
async def test_a_trace_is_found_by_its_tenant_only(models, metrics, traces, name):
    app = build_app(models, metrics, traces=traces, trusts_tenant_header=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        headers = {"x-tenant-id": "alice", "x-request-id": "mine"}
        answer = await client.post(TEXT, json={"prompt": "a"}, headers=headers)
        path = f"/v1/requests/{'mine' if name == 'x-request-id' else answer.json()['id']}/trace"
        statuses = [
            (await client.get(path, headers=headers)).status_code
            for headers in ({"x-tenant-id": "alice"}, {"x-tenant-id": "bob"}, {}, {"x-tenant-id": "b b"})
        ]
    assert statuses == [200, 404, 404, 400]


async def test_a_request_of_no_tenant_is_hidden_from_tenants(models, metrics, traces):
    app = build_app(models, metrics, traces=traces, trusts_tenant_header=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        await client.post(TEXT, json={"prompt": "a"}, headers={"x-request-id": "mine"})
        assert (await client.get("/v1/requests/mine/trace")).status_code == 200
        assert (await client.get("/v1/requests/mine/trace", headers={"x-tenant-id": "bob"})).status_code == 404


async def test_requests_of_other_tenants_with_the_same_name_push_no_trace_out(models, metrics, traces):
    app = build_app(models, metrics, traces=traces, trusts_tenant_header=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        for tenant in ("alice", *["bob"] * (MAX_SAME_NAME + 1)):
            headers = {"x-tenant-id": tenant, "x-request-id": "same"}
            await client.post(TEXT, json={"prompt": "a"}, headers=headers)
        assert (await client.get("/v1/requests/same/trace", headers={"x-tenant-id": "alice"})).status_code == 200


async def listed(client, **query):
    response = await client.get("/v1/requests", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def test_recent_requests_are_listed_without_texts(client, generator, traces):
    for name in ("first", "second"):
        await client.post(TEXT, json={"prompt": "a secret of mine"}, headers={"x-request-id": name})
    request_id, start = generator.requests[-1].request_id, time.time()
    events = [
        TraceEvent("queued", start, {"prompt_tokens": 4}),
        TraceEvent("admitted", start, {"cached_tokens": 3}),
        TraceEvent("first_token", start + 1.0, {}),
        TraceEvent("preempted", start + 1.5, {}),
        TraceEvent("speculated", start + 2.0, {"draft_tokens": 6, "accepted_tokens": 5}),
    ]
    traces.dispatched(request_id, [0], engine="e1", why="free", attempt=0)
    traces.migrated(request_id, engine="e1", reason="engine lost", output_tokens=2)
    traces.add_engine_events(request_id, 0, events)
    assert [each["state"] for each in await listed(client)] == ["running", "queued"]
    traces.finished(request_id, 0, "stop", 7)
    first, second = await listed(client)
    assert (first["id"], second["id"]) == ("cmpl-second", "cmpl-first")
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (4, 3, 7)
    assert (first["state"], first["finish_reasons"], first["engines"]) == ("finished", ["stop"], ["e1"])
    assert (first["migrations"], first["preemptions"]) == (1, 1)
    assert (first["draft_tokens"], first["accepted_draft_tokens"]) == (6, 5)
    assert 1.0 <= first["first_token_s"] < 60
    traces.migrated(request_id, engine="e1", reason="engine lost", output_tokens=2, first_token_s=0.25)
    assert (await listed(client))[0]["first_token_s"] == 0.25
    assert "secret" not in str(first)
    assert "tenant" not in first
    assert len(await listed(client, limit=1)) == 1


@pytest.mark.parametrize("limit", ["0", "501", "-1", "a", "", "1e9"])
async def test_a_wrong_number_of_requests_is_refused(client, limit):
    response = await client.get("/v1/requests", params={"limit": limit})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "limit")


async def test_prompts_are_listed_only_where_they_are_kept(models, metrics):
    app = build_app(models, metrics, traces=TraceStore(keeps_prompts=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        await client.post(TEXT, json={"prompt": "a secret of mine"})
        (found,) = await listed(client)
    assert found["prompt"].strip() == "a secret of mine"


async def test_a_tenant_lists_its_own_requests_only(models, metrics, traces):
    app = build_app(models, metrics, traces=traces, trusts_tenant_header=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        await client.post(TEXT, json={"prompt": "a"}, headers={"x-tenant-id": "alice"})
        for tenant, count in (("alice", 1), ("bob", 0)):
            response = await client.get("/v1/requests", headers={"x-tenant-id": tenant})
            assert len(response.json()["data"]) == count
