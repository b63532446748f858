import json

import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def embedded(deploy):
    with deploy("embedded", [{"model": "smollm2-135m", "num_kv_blocks": 512, "num_threads": 2}]) as client:
        yield client


def test_the_embedded_model_knows_the_capital_of_france(embedded):
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = embedded.http.post("/v1/chat/completions", json=body)
    assert "Paris" in whole.json()["choices"][0]["message"]["content"]
    streamed = embedded.http.post("/v1/chat/completions", json=body | {"stream": True})
    assert "Paris" in streamed.text


def test_the_second_message_of_a_chat_finds_the_first_in_the_cache(embedded):
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 24}
    answer = embedded.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    longer = [*QUESTION, answer, {"role": "user", "content": "And of Italy?"}]
    usage = embedded.http.post("/v1/chat/completions", json=body | {"messages": longer}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 32


def test_without_a_temperature_every_seed_knows_the_capital_of_france(embedded):
    for seed in range(20):
        body = {"messages": QUESTION, "max_tokens": 16, "seed": seed}
        answer = embedded.http.post("/v1/chat/completions", json=body).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
    (card,) = embedded.http.get("/v1/models").json()["data"]
    assert card["default_sampling_params"] == {"temperature": 0.2, "top_p": 0.5}


def test_required_calls_have_arguments_by_their_schemas(embedded):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    tool = {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": schema}}
    ask = [{"role": "user", "content": "What is 17 plus 25?"}]
    body = {"messages": ask, "tools": [tool], "tool_choice": "required", "temperature": 0, "max_tokens": 200}
    (choice,) = embedded.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        assert (call["function"]["name"], set(arguments), type(arguments["a"])) == ("add", {"a", "b"}, int)
