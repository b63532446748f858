"""Paths about the server and its models, as tritonclient asks them."""

import pytest

SIMPLE, TINY = "/v2/models/simple", "/v2/models/org/tiny"
ROW = {"datatype": "INT32", "shape": [2, 16], "data": [1] * 32}
INFER = {"inputs": [{"name": "INPUT0", **ROW}, {"name": "INPUT1", **ROW}]}


async def test_health_answers_with_bodies_and_statuses(client, generator):
    assert (await client.get("/v2/health/live")).json() == {"live": True}
    assert (await client.get("/v2/health/ready")).json() == {"ready": True}
    generator.not_ready = "no engine is ready yet"
    assert (await client.get("/v2/health/live")).status_code == 200
    response = await client.get("/v2/health/ready")
    assert (response.status_code, response.json()) == (503, {"error": "org/tiny: no engine is ready yet"})


async def test_server_metadata_lists_what_is_there(client):
    body = (await client.get("/v2")).json()
    assert body.keys() == {"name", "version", "extensions"}
    assert {"binary_tensor_data", "classification", "statistics", "generate"} <= set(body["extensions"])
    assert not {"system_shared_memory", "cuda_shared_memory", "sequence"} & set(body["extensions"])


@pytest.mark.parametrize("path", [SIMPLE, f"{SIMPLE}/versions/1"])
async def test_a_tensor_model_has_metadata_and_configuration(client, path):
    metadata = (await client.get(path)).json()
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = (await client.get(f"{path}/config")).json()
    assert config["max_batch_size"] > 1
    assert config["input"][0] == {"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [16], "optional": False}
    assert (await client.get(f"{path}/ready")).json() == {"name": "simple", "ready": True}


async def test_a_language_model_has_texts_as_tensors(client):
    metadata = (await client.get(TINY)).json()
    assert metadata["platform"] == "rayinfer"
    assert metadata["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [-1]}
    assert metadata["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}]
    config = (await client.get(f"{TINY}/config")).json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["parameters"] == {"max_model_len": {"string_value": "256"}}


async def test_readiness_of_one_model(client, generator):
    generator.not_ready = "starting"
    response = await client.get(f"{TINY}/ready")
    assert (response.status_code, response.json()) == (503, {"error": "The model 'org/tiny' is not ready: starting."})
    assert (await client.get(f"{SIMPLE}/ready")).status_code == 200
    assert (await client.get("/v2/models/none/ready")).status_code == 404


async def test_statistics_count_rows_and_executions(client):
    for _ in range(3):
        assert (await client.post(f"{SIMPLE}/infer", json=INFER)).status_code == 200
    await client.post(f"{TINY}/generate", json={"text_input": "a"})
    [statistics] = (await client.get(f"{SIMPLE}/versions/1/stats")).json()["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (6, 3)
    durations = statistics["inference_stats"]
    assert [durations[each]["count"] for each in ("success", "fail", "queue", "compute_infer")] == [3, 0, 3, 3]
    assert durations["success"]["ns"] >= durations["compute_infer"]["ns"] > 0
    assert durations["compute_output"]["count"] == 3
    every = (await client.get("/v2/models/stats")).json()["model_stats"]
    assert {each["name"]: each["inference_count"] for each in every} == {"org/tiny": 1, "simple": 6, "identity": 0}


async def test_a_refused_generation_counts_as_a_failure(client, generator):
    generator.refusal = RuntimeError("broken")
    assert (await client.post(f"{TINY}/generate", json={"text_input": "a"})).status_code == 500
    [statistics] = (await client.get(f"{TINY}/stats")).json()["model_stats"]
    assert statistics["inference_stats"]["fail"]["count"] == 1
    assert statistics["inference_count"] == 0


async def test_an_example_model_can_be_unloaded_and_loaded(client):
    # As tritonclient's unload_model sends it.
    body = {"parameters": {"unload_dependents": False}}
    assert (await client.post("/v2/repository/models/simple/unload", json=body)).json() == {}
    assert (await client.post(f"{SIMPLE}/infer", json=INFER)).status_code == 503
    assert (await client.get(f"{SIMPLE}/ready")).status_code == 503
    assert (await client.get("/v2/health/ready")).status_code == 200
    index = {entry["name"]: entry for entry in (await client.post("/v2/repository/index")).json()}
    assert index["simple"] == {"name": "simple", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
    assert [entry["name"] for entry in ready] == ["org/tiny", "identity"]
    assert (await client.post("/v2/repository/models/simple/load")).json() == {}
    assert (await client.post(f"{SIMPLE}/infer", json=INFER)).status_code == 200


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/simple/trace/setting", "/v2/logging"])
async def test_settings_can_be_read_and_not_written(client, path):
    settings = (await client.get(path)).json()
    assert (await client.post(path, json={})).json() == settings
    response = await client.post(path, json={next(iter(settings)): "x"})
    assert response.status_code == 400
    assert "read-only" in response.json()["error"]


@pytest.mark.parametrize("memory", ["systemsharedmemory", "cudasharedmemory"])
@pytest.mark.parametrize("path", ["status", "region/a/status", "region/a/register", "unregister"])
async def test_shared_memory_is_refused_with_its_reason(client, memory, path):
    method = "GET" if path.endswith("status") else "POST"
    response = await client.request(method, f"/v2/{memory}/{path}")
    assert response.status_code == 404
    assert "Shared memory is not supported" in response.json()["error"]
