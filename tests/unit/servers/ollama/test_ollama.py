import json

import pytest

from rayinfer.errors import RequestFailed

CHAT = {"model": "org/tiny", "messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"model": "org/tiny", "prompt": "hello"}


def lines_of(response) -> list[dict]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.content.splitlines()]


@pytest.mark.parametrize("path", ["chat", "generate"])
async def test_a_stream_is_the_default_and_equals_the_whole_answer(client, path):
    body = CHAT if path == "chat" else PROMPT
    *pieces, last = lines_of(await client.post(f"/api/{path}", json=body))
    whole = (await client.post(f"/api/{path}", json=body | {"stream": False})).json()

    def text(piece):
        return piece["message"]["content"] if path == "chat" else piece["response"]

    assert [text(piece) for piece in pieces] == ["Hello", " there", "!"]
    assert not any(piece["done"] for piece in pieces)
    assert text(whole) == "Hello there!"
    for each in (last, whole):
        assert (each["done"], each["done_reason"], each["eval_count"]) == (True, "stop", 3)
        assert each["prompt_eval_count"] > 0
        assert each["total_duration"] >= each["prompt_eval_duration"] + each["eval_duration"] - 1000
        assert each["created_at"].endswith("Z")


async def test_options_become_sampling_settings(client, generator):
    options = {
        "num_predict": 5, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3, "stop": ["x"],
        "repeat_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5, "num_ctx": 8192, "num_gpu": 1,
        "speculation": 4,
    }  # fmt: skip
    await client.post("/api/chat", json=CHAT | {"options": options})
    params = generator.requests[0].sampling_params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p) == (5, 0.5, 7, 0.9, 0.1)
    assert (params.seed, params.stop_strings, params.repetition_penalty) == (3, ("x",), 1.25)
    assert (params.presence_penalty, params.frequency_penalty, params.speculation) == (0.5, -0.5, 4)
    await client.post("/api/chat", json=CHAT | {"options": {"num_predict": -1}})
    assert generator.requests[1].sampling_params.max_tokens is None


async def test_a_raw_prompt_skips_the_chat_template(client, generator, models):
    await client.post("/api/generate", json=PROMPT | {"raw": True})
    await client.post("/api/generate", json=PROMPT | {"system": "Be brief."})
    raw, chat = (request.prompt_token_ids for request in generator.requests)
    assert raw == models["org/tiny"].tokenizer.encode("hello", add_special_tokens=True)
    assert "Be brief." in models["org/tiny"].tokenizer.decode(chat, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "other"}, 404, "model 'other' not found"),
        ({"options": {"temperature": 3.0}}, 400, "options.temperature"),
        ({"options": {"repeat_penalty": -1.0}}, 400, "options.repeat_penalty"),
        ({"options": {"num_predict": 0}}, 400, "options.num_predict"),
        ({"options": {"speculation": 17}}, 400, "options.speculation must be"),
        ({"options": {"speculation": "on"}}, 400, "options.speculation must be"),
        ({"options": {"mirostat": 1}}, 400, "mirostat"),
        ({"messages": [{"role": "user", "content": "a", "images": ["abcd"]}]}, 400, "reads text only"),
        (
            {"messages": [{"role": "user", "content": "a", "images": ["http://a/b"]}]},
            400,
            "messages.0.images.0 must be",
        ),
        ({"messages": [{"role": "user", "content": "a", "images": [1]}]}, 400, "messages.0.images.0 must be"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, 400, "messages.0.role"),
        ({"format": "json", "messages": 1}, 400, "messages"),
    ],
)
async def test_refusals_have_the_form_of_ollama(client, body, status, said):
    response = await client.post("/api/chat", json=CHAT | body)
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert said in response.json()["error"]


@pytest.mark.parametrize("field", ["suffix", "template", "context"])
async def test_fields_without_support_are_refused_by_name(client, field):
    value = [1] if field == "context" else "x"
    response = await client.post("/api/generate", json=PROMPT | {field: value})
    assert (response.status_code, response.json()) == (400, {"error": f"{field} is not supported by this service."})


async def test_models_have_tags_and_are_found_by_them(client):
    (entry,) = (await client.get("/api/tags")).json()["models"]
    assert entry["name"] == "org/tiny:latest"
    whole = (await client.post("/api/chat", json=CHAT | {"model": entry["name"], "stream": False})).json()
    assert whole["model"] == entry["name"]
    details = (await client.post("/api/show", json={"model": entry["name"]})).json()
    assert details["model_info"]["transformer.context_length"] == 256
    assert details["capabilities"] == ["completion", "tools"]
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert (running["model"], running["context_length"]) == (entry["name"], 256)
    assert (await client.get("/api/version")).json()["version"]
    assert (await client.post("/api/show", json={"model": "other"})).status_code == 404


async def test_changes_of_what_is_served_are_501(client):
    for name in ("pull", "push", "create", "copy"):
        response = await client.post(f"/api/{name}", json={"model": "a"})
        assert (response.status_code, name in response.json()["error"]) == (501, True)
    assert (await client.request("DELETE", "/api/delete", json={"model": "a"})).status_code == 501


async def test_requests_without_a_prompt_answer_that_the_model_is_loaded(client, generator):
    answer = (await client.post("/api/chat", json={"model": "org/tiny"})).json()
    assert (answer["done"], answer["done_reason"], generator.requests) == (True, "load", [])
    assert (await client.post("/api/generate", json={"model": "org/tiny"})).json()["response"] == ""


async def test_a_failure_after_the_first_output_is_a_line(client, generator):
    generator.failure = RequestFailed("inner details")
    first, last = lines_of(await client.post("/api/chat", json=CHAT))
    assert first["message"]["content"] == "Hello"
    assert list(last) == ["error"]
    assert "inner details" not in last["error"]


async def test_a_body_of_plain_curl_is_json_but_no_web_page_may_send_it(client):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps(CHAT)
    assert (await client.post("/api/chat", content=body, headers=headers)).status_code == 200
    page = headers | {"Origin": "http://elsewhere.example"}
    assert (await client.post("/api/chat", content=body, headers=page)).status_code == 403
