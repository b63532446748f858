import json
from dataclasses import replace

import httpx
import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer.tokenization.chat_template import ChatTemplate

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Nantes"}}\n</tool_call>'
PIECES = ("I look.\n<tool", CALL[5:30], CALL[30:50], CALL[50:])
WAYS = {
    "/v1/chat/completions": {"messages": [USER], "tools": [TOOL]},
    "/v1/responses": {"input": "hello", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": [USER], "max_tokens": 99,
        "tools": [{"name": "weather", "description": "Weather of a city", "input_schema": SCHEMA}],
    },
    "/api/chat": {"messages": [USER], "tools": [TOOL]},
}  # fmt: skip
REQUIRED = {"/v1/messages": {"type": "any"}}
NAMED = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "weather"}},
    "/v1/responses": {"type": "function", "name": "weather"},
    "/v1/messages": {"type": "tool", "name": "weather"},
}


@pytest.fixture(autouse=True)
def has_room(generator):
    """Make the context long enough for descriptions of tools."""
    generator.max_model_len = 2048


def calls_and_text(path, answer):
    """Return an answer's calls, its text and why it ended."""
    if path == "/v1/chat/completions":
        (choice,) = answer["choices"]
        calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
        found = [(call["name"], json.loads(call["arguments"])) for call in calls]
        return found, choice["message"]["content"] or "", choice["finish_reason"]
    if path == "/v1/responses":
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        texts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
        return [(call["name"], json.loads(call["arguments"])) for call in calls], "".join(texts), answer["status"]
    if path == "/v1/messages":
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        return [(call["name"], call["input"]) for call in calls], "".join(texts), answer["stop_reason"]
    calls = [call["function"] for call in answer["message"].get("tool_calls", ())]
    return [(call["name"], call["arguments"]) for call in calls], answer["message"]["content"], answer["done_reason"]


def with_template(models, template, **fields):
    named = {
        name: replace(model, chat_template=ChatTemplate({"default": template}), **fields)
        for name, model in models.items()
    }
    transport = httpx.ASGITransport(build_app(named, ServiceMetrics()))
    return httpx.AsyncClient(transport=transport, base_url="http://service")


def prompt_of(generator, models):
    return models["org/tiny"].tokenizer.decode(generator.requests[-1].prompt_token_ids, skip_special_tokens=False)


ENDS = {"/v1/chat/completions": "tool_calls", "/v1/responses": "completed", "/v1/messages": "tool_use"}


@pytest.mark.parametrize("path", WAYS)
async def test_calls_of_every_protocol_are_split_off_the_text(client, generator, models, path):
    generator.pieces = PIECES
    response = await client.post(path, json={"model": "org/tiny", "stream": False, **WAYS[path]})
    assert response.status_code == 200, response.text
    found = calls_and_text(path, response.json())
    assert found == ([("weather", {"city": "Nantes"})], "I look.", ENDS.get(path, "stop"))
    assert "Weather of a city" in prompt_of(generator, models)
    assert generator.requests[0].sampling_params.structured_outputs is None


@pytest.mark.parametrize("path", ENDS)
async def test_required_and_named_calls_hold_answers_to_a_grammar(client, generator, path):
    generator.supports_structured_outputs, generator.pieces = True, (CALL,)
    for choice in (REQUIRED.get(path, "required"), NAMED[path]):
        body = {"model": "org/tiny", "stream": False, "tool_choice": choice, **WAYS[path]}
        response = await client.post(path, json=body)
        assert calls_and_text(path, response.json())[0] == [("weather", {"city": "Nantes"})]
        assert "start: calls" in generator.requests[-1].sampling_params.structured_outputs.grammar


@pytest.mark.parametrize("path", WAYS)
async def test_without_a_choice_of_tools_markers_are_text(client, generator, models, path):
    generator.pieces = PIECES
    none = {"type": "none"} if path == "/v1/messages" else "none"
    body = {"model": "org/tiny", "stream": False, **WAYS[path], "tool_choice": none}
    if path == "/api/chat":
        del body["tools"]
    found = calls_and_text(path, (await client.post(path, json=body)).json())
    assert found[:2] == ([], "".join(PIECES))
    assert "Weather of a city" not in prompt_of(generator, models)


@pytest.mark.parametrize("path", ENDS)
async def test_a_schema_that_cannot_be_kept_is_refused(client, generator, path):
    generator.supports_structured_outputs = True
    broken = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    body = json.loads(json.dumps(WAYS[path]).replace(json.dumps(SCHEMA), json.dumps(broken)))
    body = {"model": "org/tiny", **body, "tool_choice": REQUIRED.get(path, "required")}
    response = await client.post(path, json=body)
    assert (response.status_code, "tools" in response.text) == (400, True)
    generator.supports_structured_outputs = False
    response = await client.post(
        path, json={"model": "org/tiny", **WAYS[path], "tool_choice": REQUIRED.get(path, "required")}
    )
    assert (response.status_code, "not supported by this model" in response.text) == (400, True)


async def test_a_stream_has_the_beginning_of_a_call_before_its_arguments(client, generator):
    generator.pieces = PIECES
    body = {"model": "org/tiny", "stream": True, **WAYS["/v1/chat/completions"]}
    text = (await client.post("/v1/chat/completions", json=body)).text
    choices = [json.loads(part[6:])["choices"][0] for part in text.split("\n\n")[:-2]]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    (first, *rest) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (first["function"]["name"], first["type"], first["index"]) == ("weather", "function", 0)
    assert first["id"].startswith("call_")
    assert len(rest) >= 2
    assert not any("id" in each for each in rest)
    assert json.loads("".join(each["function"]["arguments"] for each in rest)) == {"city": "Nantes"}
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_calls_and_results_of_earlier_turns_reach_the_prompt(client, generator, models):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Brest"}'}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    await client.post("/v1/chat/completions", json={"messages": history})
    prompt = prompt_of(generator, models)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Brest"}}\n</tool_call>' in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


REASONING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if x %}</think>{% endif %}{{ open }}"


async def test_reasoning_is_split_off_and_counted(models, generator):
    generator.pieces = ("<think>hm", "m</th", "ink>\n\nYes")
    async with with_template(models, REASONING) as client:
        (choice,) = (answer := (await client.post("/v1/chat/completions", json={"messages": [USER]})).json())["choices"]
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("hmm", "Yes")
        assert choice["message"]["reasoning"] == "hmm"
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
        hidden = await client.post("/v1/chat/completions", json={"messages": [USER], "include_reasoning": False})
        assert hidden.json()["choices"][0]["message"] == {"role": "assistant", "content": "Yes", "refusal": None}
        message = await client.post("/v1/messages", json={"model": "org/tiny", "max_tokens": 9, "messages": [USER]})
        assert [block["type"] for block in message.json()["content"]] == ["thinking", "text"]
        generator.pieces = ("hmm</think>Yes",)
        body = {"messages": [USER], "chat_template_kwargs": {"open": "<think>\n"}}
        (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("hmm", "Yes")


async def test_ollama_says_which_models_think_and_refuses_to_have_others_think(client, models):
    ask = {"model": "org/tiny", "messages": [USER], "think": True}
    refused = await client.post("/api/chat", json=ask)
    assert (refused.status_code, "does not support thinking" in refused.json()["error"]) == (400, True)
    assert (await client.post("/api/chat", json=ask | {"think": False})).status_code == 200
    async with with_template(models, REASONING) as thinking:
        assert (await thinking.post("/api/chat", json=ask)).status_code == 200
        shown = (await thinking.post("/api/show", json={"model": "org/tiny"})).json()
        assert shown["capabilities"] == ["completion", "tools", "thinking"]


async def test_a_schema_holds_for_what_follows_reasoning(models, generator):
    generator.supports_structured_outputs = True
    async with with_template(models, REASONING) as client:
        body = {"messages": [USER], "response_format": {"type": "json_object"}}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        spec = generator.requests[-1].sampling_params.structured_outputs
        assert (spec.reasoning_tags, spec.begins_in_reasoning, spec.json_object) == (
            ("<think>", "</think>"),
            False,
            True,
        )
        await client.post("/v1/chat/completions", json=body | {"chat_template_kwargs": {"open": "<think>"}})
        assert generator.requests[-1].sampling_params.structured_outputs.begins_in_reasoning


async def test_an_answer_is_a_call_or_keeps_the_format(client, generator):
    generator.supports_structured_outputs = True
    body = {"messages": [USER], "tools": [TOOL], "response_format": {"type": "json_object"}}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert "start: calls | other" in generator.requests[-1].sampling_params.structured_outputs.grammar
    body = {"messages": [USER], "tools": [TOOL], "structured_outputs": {"regex": "a+"}}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "structured_outputs")


@pytest.mark.parametrize("choice", ["required", NAMED["/v1/chat/completions"]])
async def test_a_form_beside_a_call_that_must_come_is_refused(client, generator, choice):
    generator.supports_structured_outputs = True
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice, "structured_outputs": {"json_object": True}}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "structured_outputs")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_strict_tools_hold_answers_to_a_grammar(client, generator, path):
    generator.supports_structured_outputs = True
    tools = [WAYS[path]["tools"][0] | {"strict": True}]
    assert (await client.post(path, json={"model": "org/tiny", **WAYS[path], "tools": tools})).status_code == 200
    assert generator.requests[-1].sampling_params.structured_outputs is not None


async def test_allowed_tools_of_responses_leave_the_others_out(client, generator):
    generator.supports_structured_outputs = True
    (tool,) = WAYS["/v1/responses"]["tools"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    body = {"input": "hello", "tools": [tool, tool | {"name": "other"}], "tool_choice": choice}
    response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    grammar = generator.requests[-1].sampling_params.structured_outputs.grammar
    assert "other" in grammar
    assert "weather" not in grammar
    response = await client.post("/v1/responses", json=body | {"tool_choice": choice | {"tools": ["other"]}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_stream_of_ollama_has_calls_before_its_last_line(client, generator):
    generator.pieces = PIECES
    lines = (await client.post("/api/chat", json={"model": "org/tiny", **WAYS["/api/chat"]})).content.splitlines()
    *_, calls, last = (json.loads(line) for line in lines)
    assert (calls["done"], last["done"]) == (False, True)
    assert calls["message"]["tool_calls"][0]["function"]["arguments"] == {"city": "Nantes"}
    assert "tool_calls" not in last["message"]


async def test_settings_that_contradict_required_calls_are_refused(client, generator):
    generator.supports_structured_outputs = True
    body = {"messages": [USER], "tools": [TOOL], "tool_choice": "required", "min_tokens": 5, "max_tokens": 9}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "min_tokens")
    assert "structured_outputs" not in response.text


async def test_a_named_format_replaces_the_detected_one(models, generator):
    generator.pieces = ('[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Nantes"}}]',)
    async with with_template(models, "{{ messages[0].content }}", tool_format="mistral") as client:
        body = {"messages": [USER], "tools": [TOOL], "parallel_tool_calls": False}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], len(call["id"])) == ("weather", 9)


async def test_tokenize_counts_tools_and_calls(client, generator, models):
    response = await client.post("/tokenize", json={"messages": [USER], "tools": [TOOL]})
    tokens = response.json()["tokens"]
    await client.post("/v1/chat/completions", json={"messages": [USER], "tools": [TOOL]})
    assert tokens == list(generator.requests[-1].prompt_token_ids)
