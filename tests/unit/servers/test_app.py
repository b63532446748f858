from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

import rayinfer
from rayinfer.errors import QueueFull
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from support.fakes.fake_generator import FakeGenerator

PROMPT = {"prompt": "the quick brown fox"}


def metric(metrics: ServiceMetrics, line: str) -> str | None:
    found = [text for text in metrics.render().decode().splitlines() if text.startswith(line)]
    return found[0].rpartition(" ")[2] if found else None


async def test_health_is_an_empty_200_for_get_and_head(client):
    for method in ("GET", "HEAD"):
        for path in ("/health", "/health/", "/ping"):
            response = await client.request(method, path)
            assert (response.status_code, response.content) == (200, b"")


async def test_ready_says_why_not(client, generator):
    assert (await client.get("/ready")).json() == {"ready": True}
    generator.not_ready = "no engine has warmed up"
    response = await client.get("/ready")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "reasons": {"org/tiny": "no engine has warmed up"}}


async def test_a_service_without_models_is_not_ready_and_refuses_with_503(client, models):
    models.clear()
    assert (await client.get("/ready")).json() == {"ready": False, "reasons": {"service": "no model is loaded yet"}}
    response = await client.post("/v1/completions", json=PROMPT)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}


async def test_models_that_come_later_are_served(client, models):
    late = models.pop("org/tiny")
    assert (await client.post("/v1/completions", json=PROMPT)).status_code == 503
    models["org/tiny"] = late
    assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200


async def test_metrics_are_served_on_the_same_port(client, metrics):
    metrics.set_engine_stats("org/tiny", "engine-0", EngineStats(kv_blocks_used=3, kv_blocks_total=4))
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'vllm:kv_cache_usage_perc{engine="engine-0",model_name="org/tiny"} 0.75' in response.text


async def test_the_load_is_served_without_names(client, metrics):
    metrics.set_num_queued("org/tiny", 3)
    for engine, running, used in (("engine-0", 2, 1), ("engine-1", 4, 3)):
        stats = EngineStats(num_running=running, num_waiting=1, kv_blocks_used=used, kv_blocks_total=4)
        metrics.set_engine_stats("org/tiny", engine, stats)
    families = {each.name: each for each in text_string_to_metric_families((await client.get("/metrics/load")).text)}
    values = {name: [(sample.labels, sample.value) for sample in each.samples] for name, each in families.items()}
    assert values == {
        "vllm:num_requests_running": [({}, 6)],
        "vllm:num_requests_waiting": [({}, 5)],
        "vllm:kv_cache_usage_perc": [({}, 0.5)],
    }


async def test_refusals_are_counted_by_their_reason(client, generator, metrics):
    await client.post("/v1/completions", json={"prompt": ""})
    await client.post("/v1/completions", json={**PROMPT, "model": "other"})
    generator.refusal = QueueFull("too many")
    await client.post("/v1/completions", json=PROMPT)
    for reason in ("invalid_request", "model_not_found", "queue_full"):
        assert metric(metrics, f'rayinfer_requests_refused_total{{reason="{reason}"}}') == "1.0"


async def test_the_version_is_the_packages_own(client):
    assert (await client.get("/version")).json() == {"version": rayinfer.__version__}


async def test_unknown_paths_and_wrong_methods_are_enveloped(client):
    missing = await client.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"] == {
        "message": "No such path.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    wrong = await client.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["type"] == "invalid_request_error"


async def test_aliases_without_prefix_and_with_a_trailing_slash_answer(client):
    for path in ("/v1/completions", "/v1/completions/", "/completions", "/completions/"):
        assert (await client.post(path, json=PROMPT)).status_code == 200
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/v1/chat/completions/", "/chat/completions", "/chat/completions/"):
        assert (await client.post(path, json=chat)).status_code == 200
    for path in ("/v1/models", "/v1/models/", "/models", "/models/"):
        assert (await client.get(path)).json()["data"][0]["id"] == "org/tiny"
    for path in ("/v1/models/org/tiny", "/v1/models/org/tiny/", "/models/org/tiny"):
        assert (await client.get(path)).json()["id"] == "org/tiny"


async def test_the_schema_of_the_bodies_can_be_read_and_every_reference_resolves(client):
    document = (await client.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionBody"}
    assert "/completions" not in document["paths"]
    schemas = document["components"]["schemas"]
    assert "messages" in schemas["ChatCompletionBody"]["required"]
    assert {name.rpartition("/")[2] for name in _references(document)} <= schemas.keys()


async def test_a_model_that_is_not_ready_is_listed_and_refuses_with_503_and_the_time_to_wait(client, generator):
    generator.not_ready = "still loading"
    assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] is None
    response = await client.post("/v1/completions", json=PROMPT)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["message"] == "still loading"


async def test_with_two_models_the_name_is_required(client, models):
    other = FakeGenerator(pieces=("other",))
    models["b"] = replace(models["org/tiny"], name="b", generator=other)
    unnamed = await client.post("/v1/completions", json=PROMPT)
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")
    named = await client.post("/v1/completions", json={**PROMPT, "model": "b"})
    assert named.json()["choices"][0]["text"] == "other"
    assert named.json()["model"] == "b"


def test_two_services_can_live_in_one_process_with_their_own_registries():
    first, second = ServiceMetrics(), ServiceMetrics()
    first.request_refused("queue_full")
    assert b'reason="queue_full"' not in second.render()


def _references(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(_references, node.values()))
    return set().union(*map(_references, node)) if isinstance(node, list) else set()
