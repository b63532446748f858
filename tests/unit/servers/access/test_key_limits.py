"""Limits of keys at the level of HTTP."""

import asyncio

import pytest

from rayinfer.access.api_key import Scope
from tests.unit.servers.access.conftest import BODY


async def test_requests_a_minute_are_in_headers_and_end_in_429(guarded):
    secret = await guarded.key("alice", requests_per_minute=2, tokens_per_minute=1000)
    async with guarded.client(secret) as client:
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        assert 0 < float(answer.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 30
        await client.get("/v1/models")
        answer = await client.post("/v1/completions", content=b"not read")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["Retry-After"]) <= 30
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"


async def test_tokens_of_answers_count(guarded):
    secret = await guarded.key("alice", tokens_per_minute=5)
    async with guarded.client(secret) as client:
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        await guarded.access.synchronize()
        answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-tokens"]) == (429, "0")


@pytest.mark.parametrize(
    ("limits", "fields", "status", "param"),
    [
        ({"max_tokens": 3}, {}, 200, None),
        ({"max_tokens": 2}, {}, 400, "max_tokens"),
        ({"max_context": 300}, {}, 200, None),
        ({"max_context": 5}, {}, 200, None),
        ({"max_context": 4}, {}, 400, "max_tokens"),
        ({"max_context": 2}, {}, 400, None),
        ({"max_context": 7, "max_tokens": 2}, {"max_tokens": 2}, 200, None),
        ({"models": ("org/tiny",)}, {}, 200, None),
        ({"models": ("other",)}, {}, 404, "model"),
        ({"models": ("other",)}, {"model": "missing"}, 404, "model"),
        ({"most_urgent": 0}, {"priority": -1}, 403, "priority"),
        ({"most_urgent": 0}, {"priority": 1}, 200, None),
        ({"least_urgent": 3}, {"priority": 4}, 403, "priority"),
    ],
    ids=str,
)
async def test_limits_of_a_request(guarded, generator, limits, fields, status, param):
    secret = await guarded.key("alice", **limits)
    async with guarded.client(secret) as client:
        for stream in (False, True):
            answer = await client.post("/v1/completions", json=BODY | {"stream": stream} | fields)
            assert answer.status_code == status, answer.text
            if status != 200:
                assert answer.json()["error"]["param"] == param
                assert "org/tiny" not in answer.text
                assert generator.requests == []


async def test_answers_without_a_length_get_the_keys(guarded, generator):
    secret = await guarded.key("alice", max_tokens=7)
    async with guarded.client(secret) as client:
        for method, path, body in (
            ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("POST", "/v1/completions", {"prompt": "Hi"}),
            ("POST", "/generate", {"inputs": "Hi"}),
            ("PUT", "/api", {"prompts": ["Hi"]}),
            ("POST", "/v2/models/org/tiny/generate", {"text_input": "Hi"}),
        ):
            answer = await client.request(method, path, json=body)
            assert answer.status_code == 200, (path, answer.text)
    assert [request.sampling_params.max_tokens for request in generator.requests] == [7] * 5
    assert {request.tenant for request in generator.requests} == {"alice"}


async def test_a_length_beyond_the_keys_is_refused_by_its_protocols_name(guarded):
    secret = await guarded.key("alice", max_tokens=7)
    async with guarded.client(secret) as client:
        for method, path, body, status, field in (
            ("POST", "/v1/completions", {"prompt": "Hi", "max_completion_tokens": 8}, 400, "max_completion_tokens"),
            ("POST", "/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 8}}, 422, "max_new_tokens"),
            ("PUT", "/api", {"prompts": ["Hi"], "tokens_to_generate": 8}, 400, "tokens_to_generate"),
        ):
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, field in answer.text) == (status, True), (path, answer.text)


async def test_models_that_a_key_may_not_use_are_not_listed(guarded):
    async with guarded.client(await guarded.key("alice", models=("org/tiny",))) as client:
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["org/tiny"]
        assert (await client.get("/v1/models/org/tiny")).status_code == 200
    async with guarded.client(await guarded.key("bob", models=("other",))) as client:
        assert (await client.get("/v1/models")).json()["data"] == []
        for name in ("org/tiny", "missing"):
            answer = await client.get(f"/v1/models/{name}")
            assert answer.status_code == 404
            assert "org/tiny" not in answer.text


async def wait_for(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the application has no event for it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["whole", "left", "failed"])
async def test_a_place_is_held_until_the_answer_ends_whichever_way(guarded, generator, stream, end):
    secret = await guarded.key("alice", concurrent_requests=1)
    generator.blocks_after = 1
    if end == "failed":
        generator.failure = RuntimeError("broken")
    async with guarded.client(secret) as client:
        first = asyncio.create_task(client.post("/v1/completions", json=BODY | {"stream": stream}))
        await generator.has_blocked.wait()
        answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        if end == "left":
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await generator.has_aborted.wait()
        else:
            generator.release.set()
            assert (await first).status_code == (500 if end == "failed" and not stream else 200)
        await wait_for(lambda: not guarded.access.running)
        generator.blocks_after, generator.failure = None, None
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


async def test_usage_shows_a_key_its_own_and_operators_all(guarded, generator):
    generator.num_cached_tokens = 2
    alice, bob = await guarded.key("alice"), await guarded.key("bob")
    operator = await guarded.key("olga", Scope.OPERATE, Scope.INFER)
    for secret, count in ((alice, 2), (bob, 1)):
        async with guarded.client(secret) as client:
            for _ in range(count):
                await client.post("/v1/completions", json=BODY)
    await guarded.access.synchronize()
    async with guarded.client(alice) as client:
        (row,) = (await client.get("/v1/usage")).json()["data"]
        num_prompt_tokens = len(generator.requests[0].prompt_token_ids)
        expected = {"key": "alice", "model": "org/tiny", "requests": 2, "output_tokens": 6, "cached_tokens": 4}
        assert expected.items() <= row.items()
        assert row["prompt_tokens"] == 2 * num_prompt_tokens
        assert row["cost"] == pytest.approx(row["engine_seconds"] / 1000, abs=1e-5)
        for days in ("0", "-1", "x", "1e3", "99999", "\u0663"):
            assert (await client.get("/v1/usage", params={"days": days})).status_code == 400
    async with guarded.client(operator) as client:
        assert {row["key"] for row in (await client.get("/v1/usage")).json()["data"]} == {"alice", "bob"}


async def test_traces_of_other_tenants_need_the_scope_operate(guarded):
    secrets = [await guarded.key("alice"), await guarded.key("bob")]
    operator = await guarded.key("olga", Scope.OPERATE, Scope.INFER)
    async with guarded.client(secrets[0]) as client:
        answer = await client.post("/v1/completions", json=BODY)
    path, statuses = f"/v1/requests/{answer.json()['id']}/trace", []
    for secret in (*secrets, operator):
        async with guarded.client(secret) as client:
            statuses.append((await client.get(path)).status_code)
    assert statuses == [200, 404, 200]


async def test_a_scored_prompt_counts_as_no_output(guarded):
    secret = await guarded.key("alice")
    async with guarded.client(secret) as client:
        body = BODY | {"max_tokens": 0, "echo": True, "logprobs": 1}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        await guarded.access.synchronize()
        (row,) = (await client.get("/v1/usage")).json()["data"]
    assert (row["output_tokens"], row["prompt_tokens"] > 0) == (0, True)


async def test_priorities_in_the_header_are_limited_too(guarded, generator):
    secret = await guarded.key("alice", most_urgent=0)
    async with guarded.client(secret) as client:
        for header, body, status in (("-1", 0, 403), ("1", -1, 200)):
            fields = BODY | {"priority": body}
            answer = await client.post("/v1/completions", json=fields, headers={"X-Vllm-Priority": header})
            assert answer.status_code == status, answer.text
    assert [request.priority for request in generator.requests] == [1]


async def test_a_key_is_used_by_any_request_that_carries_it(guarded):
    keys = {name: await guarded.key(name, Scope.METRICS) for name in ("alice", "bob", "carol")}
    async with guarded.client(keys["alice"]) as alice, guarded.client(keys["bob"]) as bob:
        assert (await alice.get("/metrics")).status_code == 200
        assert (await bob.post("/v1/completions", json=BODY)).status_code == 403
    await guarded.access.synchronize()
    used = guarded.last_used_s().keys()
    assert used == {key.key_id for key in guarded.keys.read() if key.name != "carol"}


async def test_sequences_count_at_the_same_time_and_a_request_counts_once_a_minute(guarded, generator):
    secret = await guarded.key("alice", concurrent_requests=3, requests_per_minute=10)
    async with guarded.client(secret) as client:
        generator.blocks_after = 1
        first = asyncio.create_task(client.post("/v1/completions", json=BODY | {"prompt": ["a", "b"]}))
        await generator.has_blocked.wait()
        for body, status in (({"n": 2}, 429), ({"prompt": ["a", "b"]}, 429), ({"n": 4}, 400)):
            answer = await client.post("/v1/completions", json=BODY | body)
            assert answer.status_code == status, answer.text
        assert (answer.json()["error"]["param"], "4 sequences" in answer.text) == ("n", True)
        body = {"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True}}
        assert (await client.post("/generate", json=body)).status_code == 429
        generator.release.set()
        answer = await first
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-remaining-requests"] == "5"


@pytest.mark.parametrize("end", ["whole", "left", "failed"])
async def test_tokens_are_reserved_until_the_answer_ends_whichever_way(guarded, generator, end):
    secret = await guarded.key("alice", tokens_per_minute=100)
    generator.blocks_after = 1
    if end == "failed":
        generator.failure = RuntimeError("broken")
    async with guarded.client(secret) as client:
        body = BODY | {"max_tokens": 30, "n": 3, "stream": True}
        first = asyncio.create_task(client.post("/v1/completions", json=body))
        await generator.has_blocked.wait()
        answer = await client.post("/v1/completions", json=BODY | {"max_tokens": 30})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 10
        if end == "left":
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await generator.has_aborted.wait()
        else:
            generator.release.set()
            assert (await first).status_code == 200
        await wait_for(lambda: not guarded.access.running)
        answer = await client.get("/v1/models")
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 80
