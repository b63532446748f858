"""Adapters by HTTP: chosen by name in every protocol, listed, loaded and unloaded as with vLLM."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from rayinfer.kv_cache.adapter_id import folder_digest
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.servers.app import build_app
from support.fakes.fake_generator import FakeGenerator
from support.services.polling import until
from unit.servers.adapters.conftest import write_adapter

MESSAGES = [{"role": "user", "content": "hi"}]
TEXT_INPUT = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]}
REQUESTS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
}
PATHS = {
    "/models/{}/generate": {"inputs": "hi"},
    "/v2/models/{}/infer": TEXT_INPUT,
    "/v2/models/{}/generate": {"text_input": "hi"},
}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def names(listed):
    return [model["id"] for model in listed.json()["data"]]


@pytest.mark.parametrize("path", REQUESTS)
async def test_the_model_of_a_body_may_be_an_adapter(client, generator, models, path):
    for name, adapter in (("poet", models["poet"].adapter.id), ("org/tiny", None)):
        answer = await client.post(path, json={**REQUESTS[path], "model": name, "stream": False})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", name) == name
        assert generator.requests[-1].adapter == adapter
    answer = await client.post(path, json={**REQUESTS[path], "model": "unknown"})
    assert answer.status_code == 404


@pytest.mark.parametrize("path", PATHS)
async def test_the_model_of_a_path_may_be_an_adapter(client, generator, models, tmp_path, path):
    assert (await client.post(path.format("poet"), json=PATHS[path])).status_code == 200
    request = generator.requests[-1]
    assert (request.adapter, request.adapter_folder) == (models["poet"].adapter.id, str(tmp_path / "poet"))
    assert (await client.post(path.format("unknown"), json=PATHS[path])).status_code == 404


async def test_tgis_adapter_id_names_an_adapter_of_the_model(client, generator, models):
    body = {"inputs": "hi", "parameters": {"adapter_id": "poet"}}
    assert (await client.post("/generate", json=body)).status_code == 200
    assert generator.requests[-1].adapter == models["poet"].adapter.id
    for wrong in ("org/tiny", "unknown"):
        body = {"inputs": "hi", "parameters": {"adapter_id": wrong}}
        assert (await client.post("/generate", json=body)).status_code == 422


async def test_models_are_listed_with_their_adapters(client, tmp_path):
    listed = (await client.get("/v1/models")).json()["data"]
    shown = [(model["id"], model["parent"], model["root"]) for model in listed]
    assert shown == [("org/tiny", None, "org/tiny"), ("poet", "org/tiny", str(tmp_path / "poet"))]
    assert (await client.get("/v1/models/poet")).json()["parent"] == "org/tiny"


async def test_an_adapter_is_loaded_replaced_and_unloaded(client, generator, tmp_path):
    folder = write_adapter(tmp_path / "loadable" / "sql", b"one")
    body = {"lora_name": "sql", "lora_path": str(folder)}
    loaded = await client.post(LOAD, json=body)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert names(await client.get("/v1/models")) == ["org/tiny", "poet", "sql"]
    write_adapter(folder, b"two")
    again = await client.post(LOAD, json=body)
    assert again.status_code == 400
    assert again.json()["error"]["message"] == (
        "The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace'"
        " to True."
    )
    assert (await client.post(LOAD, json={**body, "load_inplace": True})).status_code == 200
    await client.post("/v1/completions", json={"model": "sql", "prompt": "hi"})
    assert generator.requests[-1].adapter == f"sql@{folder_digest(folder)}"
    unloaded = await client.post(UNLOAD, json={"lora_name": "sql"})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert (await client.post("/v1/completions", json={"model": "sql", "prompt": "hi"})).status_code == 404
    gone = await client.post(UNLOAD, json={"lora_name": "sql"})
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, "The lora adapter 'sql' cannot be found.")


async def test_an_adapter_that_the_engine_refuses_is_a_400_with_the_tensor(client, tmp_path):
    folder = write_adapter(tmp_path / "loadable" / "bad", b"broken")
    refused = await client.post(LOAD, json={"lora_name": "bad", "lora_path": str(folder)})
    assert refused.status_code == 400
    assert "tensor x.lora_A.weight has rank 128" in refused.json()["error"]["message"]
    assert names(await client.get("/v1/models")) == ["org/tiny", "poet"]


async def test_running_requests_of_an_unloaded_adapter_finish(client, generator, tmp_path):
    folder = write_adapter(tmp_path / "loadable" / "sql")
    await client.post(LOAD, json={"lora_name": "sql", "lora_path": str(folder)})
    generator.blocks_after = 1
    body = {"model": "sql", "prompt": "hi"}
    running = [asyncio.ensure_future(client.post("/v1/completions", json=body | {"stream": s})) for s in (True, False)]
    await until(lambda: len(generator.requests) == 2)
    assert (await client.post(UNLOAD, json={"lora_name": "sql"})).status_code == 200
    assert (await client.post("/v1/completions", json=body)).status_code == 404
    assert not any(each.done() for each in running)
    generator.release.set()
    streamed, whole = await asyncio.gather(*running)
    assert (streamed.status_code, whole.status_code) == (200, 200)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert whole.json()["choices"][0]["text"] == "Hello there!"
    assert (len(generator.finished), generator.aborted) == (2, [])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (LOAD, {}, 400),
        (LOAD, {"lora_name": "x"}, 400),
        (LOAD, {"lora_path": "/x"}, 400),
        (LOAD, {"lora_name": "x", "lora_path": "/etc"}, 400),
        (LOAD, {"lora_name": "x", "lora_path": "{root}/nothing"}, 404),
        (LOAD, {"lora_name": "x", "lora_path": "\0"}, 400),
        (LOAD, {"lora_name": 1, "lora_path": "/x"}, 400),
        (LOAD, {"lora_name": "x", "lora_path": "{root}/sql", "base_model_name": "other"}, 400),
        (LOAD, {"lora_name": "x", "lora_path": "{root}/sql", "surprise": 1}, 400),
        (UNLOAD, {}, 400),
        (UNLOAD, {"lora_name": "unknown"}, 404),
    ],
)
async def test_wrong_bodies_are_refused_and_change_nothing(client, tmp_path, path, body, status):
    write_adapter(tmp_path / "loadable" / "sql")
    root = str(tmp_path / "loadable")
    filled = {name: each.replace("{root}", root) if isinstance(each, str) else each for name, each in body.items()}
    assert (await client.post(path, json=filled)).status_code == status
    assert names(await client.get("/v1/models")) == ["org/tiny", "poet"]


class RefusingGenerator(FakeGenerator):
    """A generator whose engine refuses every adapter when it reads it."""

    async def generate(self, request):
        refused = CompletionOutput(
            index=0, text="", token_ids=[], finish_reason="error", error="tensor x is not finite"
        )
        yield RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[refused],
            finished=True,
        )


async def test_a_request_that_the_engine_refuses_for_its_adapter_is_a_400(client, models):
    models["poet"] = replace(models["poet"], generator=RefusingGenerator())
    answer = await client.post("/v1/completions", json={"model": "poet", "prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "tensor x is not finite")


async def test_the_paths_are_not_there_without_roots(models, metrics, registry):
    for adapters in (None, type(registry)(models)):
        transport = httpx.ASGITransport(build_app(models, metrics, adapters=adapters), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            assert (await client.post(LOAD, json={})).status_code == 404
