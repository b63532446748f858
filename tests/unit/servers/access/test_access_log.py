import json

import httpx
import pytest

from rayinfer.errors import ConfigError
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.access.web_origins import OriginPolicy
from rayinfer.servers.app import build_app
from rayinfer.traces.trace_store import TraceStore
from tests.unit.servers.access.conftest import BODY, Guarded

CANARY = "zanzibar"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path):
    return AccessLog(tmp_path / "logs" / "access.log")


async def test_each_request_has_a_line_without_its_prompt_and_key(guarded, models, metrics, generator, log, tmp_path):
    app = build_app(models, metrics, access=guarded.access, access_log=log, traces=TraceStore())
    guarded = Guarded(app, guarded.access, guarded.keys)
    secret = await guarded.key("alice")
    async with guarded.client(secret) as client:
        body = BODY | {"prompt": CANARY, "request_id": "mine"}
        assert (await client.post("/v1/completions?x=" + CANARY, json=body)).status_code == 200
        assert (await client.post("/v1/completions", json=body | {"temperature": -1})).status_code == 400
        assert (await client.get("/v1/nothing%0A{}")).status_code == 404
    async with guarded.client("ri-wrong") as stranger:
        await stranger.get("/v1/models")
    log.close()
    path = tmp_path / "logs" / "access.log"
    first, *others = lines(path)
    assert path.stat().st_mode & 0o777 == 0o600
    key = guarded.keys.read()[0]
    expected = {"request_id": "mine", "key_id": key.key_id, "tenant": "alice", "model": "org/tiny", "status": 200}
    assert expected.items() <= first.items()
    assert (first["output_tokens"], first["cached_tokens"], first["path"]) == (3, 0, "/v1/completions")
    assert first["prompt_tokens"] == len(generator.requests[0].prompt_token_ids)
    assert 0 <= first["first_token_s"] <= first["total_s"]
    assert [(each["status"], each["key_id"] != "") for each in others] == [(400, True), (404, True), (401, False)]
    assert CANARY not in path.read_text()
    assert secret not in path.read_text()
    assert "ri-wrong" not in path.read_text()


async def test_a_service_without_keys_has_an_access_log_too(models, metrics, generator, log, tmp_path):
    app = build_app(models, metrics, access_log=log)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.post("/v1/completions", json=BODY | {"stream": True})).status_code == 200
        generator.refusal = RuntimeError("broken")
        assert (await client.post("/v1/completions", json=BODY)).status_code == 500
    log.close()
    found = lines(tmp_path / "logs" / "access.log")
    assert [(each["status"], each["output_tokens"], each["key_id"]) for each in found] == [(200, 3, ""), (500, 0, "")]


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_line_names_the_callers_trace_if_that_is_one(models, metrics, log, tmp_path):
    transport = httpx.ASGITransport(build_app(models, metrics, access_log=log))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for traceparent in (TRACEPARENT, CANARY, TRACEPARENT.upper(), TRACEPARENT + "-" + CANARY, ""):
            await client.get("/health", headers={"traceparent": traceparent})
        await client.get("/health")
    log.close()
    found = lines(tmp_path / "logs" / "access.log")
    assert [each.get("traceparent") for each in found] == [TRACEPARENT, None, None, None, None, None]


def test_a_file_that_is_moved_away_is_made_anew(log, tmp_path):
    path = tmp_path / "logs" / "access.log"
    log.write({"line": 1})
    log.close()
    log = AccessLog(path, check_s=0)
    path.rename(path.with_suffix(".1"))
    log.write({"line": 2})
    log.close()
    assert (lines(path.with_suffix(".1")), lines(path)) == ([{"line": 1}], [{"line": 2}])


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(ConfigError, match="cannot write the access log"):
        AccessLog(tmp_path)


async def test_pages_of_named_origins_may_use_the_service_and_others_may_not(guarded, models, metrics):
    guarded.app = build_app(
        models, metrics, access=guarded.access, origins=OriginPolicy(cors_origins=["https://page.example"])
    )
    secret = await guarded.key("alice", requests_per_minute=5)
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with guarded.client() as anonymous, guarded.client(secret) as client:
        for origin, status in (("https://page.example", 200), ("https://other.example", 400)):
            answer = await anonymous.options("/v1/completions", headers={"Origin": origin, **asking})
            assert answer.status_code == status
            assert (answer.headers.get("access-control-allow-origin") == origin) == (status == 200)
        answer = await client.post("/v1/completions", json=BODY, headers={"Origin": "https://page.example"})
        assert "x-ratelimit-remaining-requests" in answer.headers["access-control-expose-headers"]
        answer = await anonymous.get("/v1/models", headers={"Origin": "https://page.example"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "https://page.example")
        assert "access-control-allow-credentials" not in answer.headers


async def test_without_origins_no_page_may_use_the_service(guarded):
    async with guarded.client(await guarded.key("alice")) as client:
        answer = await client.get("/v1/models", headers={"Origin": "https://page.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
