import json

import pytest

from rayinfer.errors import InvalidParameter, NotReady, QueueFull, RequestFailed

BODY = {"model": "org/tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
VERSION = {"anthropic-version": "2023-06-01"}


def events_of(response) -> list[dict]:
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for part in response.text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_message_has_its_blocks_and_usage(client, generator):
    generator.num_cached_tokens = 2
    response = await client.post("/v1/messages", json=BODY, headers=VERSION | {"x-request-id": "abc"})
    message = response.json()
    assert response.headers["request-id"] == "abc"
    assert (message["id"], message["type"], message["role"]) == ("msg_abc", "message", "assistant")
    assert message["content"] == [{"type": "text", "text": "Hello there!"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    num_prompt_tokens = len(generator.requests[0].prompt_token_ids)
    assert message["usage"]["input_tokens"] == num_prompt_tokens - 2
    assert (message["usage"]["cache_read_input_tokens"], message["usage"]["output_tokens"]) == (2, 3)
    assert generator.requests[0].sampling_params.max_tokens == 20


async def test_drafts_are_a_field_of_their_own(client, generator):
    for value in ("off", "auto", 4, None):
        await client.post("/v1/messages", json=BODY | {"speculation": value})
    assert [request.sampling_params.speculation for request in generator.requests] == ["off", "auto", 4, None]


async def test_a_stream_has_its_events_in_order(client):
    events = events_of(await client.post("/v1/messages", json=BODY | {"stream": True}))
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(event["delta"]["text"] for event in events[3:6]) == "Hello there!"
    assert events[0]["message"]["content"] == []
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 3


@pytest.mark.parametrize(
    ("reason", "stop_reason", "said"),
    [
        ("length", None, {"stop_reason": "max_tokens", "stop_sequence": None}),
        ("stop", "!", {"stop_reason": "stop_sequence", "stop_sequence": "!"}),
        ("stop", 12, {"stop_reason": "end_turn", "stop_sequence": None}),
    ],
)
async def test_stop_reasons_are_those_of_anthropic(client, generator, reason, stop_reason, said):
    generator.finish_reason, generator.stop_reason = reason, stop_reason
    message = (await client.post("/v1/messages", json=BODY | {"stop_sequences": ["!"]})).json()
    assert {name: message[name] for name in said} == said
    assert generator.requests[0].sampling_params.stop_strings == ("!",)


async def test_blocks_system_and_results_reach_the_template(client, generator, models):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]},
        {"role": "assistant", "content": "It is"},
    ]
    body = BODY | {"messages": messages, "system": [{"type": "text", "text": "Be brief."}]}
    assert (await client.post("/v1/messages", json=body)).status_code == 200
    text = models["org/tiny"].tokenizer.decode(generator.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert all(each in text for each in ("Be brief.", "onetwo", "found"))
    assert text.endswith("It is")  # which the answer continues
    counted = {name: body[name] for name in ("model", "messages", "system")}
    count = (await client.post("/v1/messages/count_tokens", json=counted)).json()
    assert count == {"input_tokens": len(generator.requests[0].prompt_token_ids)}


@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 3.0}, 400, "invalid_request_error", "temperature"),
        ({"speculation": 0}, 400, "invalid_request_error", "speculation"),
        ({"speculation": "on"}, 400, "invalid_request_error", "speculation"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "bash_20250124"),
        *(
            (body, 400, "invalid_request_error", "budget_tokens")
            for body in (
                {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1023}},
                {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": "many"}},
                {"max_tokens": 2000, "thinking": {"type": "enabled"}},
                {"max_tokens": 2000, "thinking": {"type": "adaptive", "budget_tokens": 1024}},
                {"max_tokens": 1024, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            )
        ),
        ({"metadata": {"user_id": 7}}, 400, "invalid_request_error", "metadata"),
        ({"container": "c1"}, 400, "invalid_request_error", "container"),
        ({"messages": [{"role": "user", "content": "word " * 900}]}, 400, "invalid_request_error", "context"),
    ],
)
async def test_refusals_have_the_form_of_anthropic(client, body, status, kind, said):
    response = await client.post("/v1/messages", json=BODY | body)
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind
    assert said in response.json()["error"]["message"]
    assert response.headers["request-id"]


async def test_thinking_with_a_budget_is_enabled(client, generator):
    body = {"max_tokens": 1025, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    generator.max_model_len = 4096
    response = await client.post("/v1/messages", json=BODY | body)
    assert (response.status_code, generator.requests[0].sampling_params.max_tokens) == (200, 1025)
    counted = {name: BODY[name] for name in ("model", "messages")} | {"thinking": body["thinking"]}
    assert (await client.post("/v1/messages/count_tokens", json=counted)).status_code == 200


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (QueueFull("full"), 429, "rate_limit_error"),
        (NotReady("starting"), 503, "overloaded_error"),
        (RequestFailed("inner"), 500, "api_error"),
    ],
)
async def test_errors_of_the_service_have_their_types(client, generator, refusal, status, kind):
    generator.refusal = refusal
    response = await client.post("/v1/messages", json=BODY)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


async def test_a_failure_after_the_first_output_is_an_event(client, generator):
    generator.failure = RequestFailed("inner details")
    last = events_of(await client.post("/v1/messages", json=BODY | {"stream": True}))[-1]
    assert last["error"]["type"] == "api_error"
    assert "inner details" not in str(last)


async def test_models_have_the_form_that_the_header_asks_for(client):
    page = (await client.get("/v1/models", headers=VERSION)).json()
    (model,) = page["data"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "org/tiny", "org/tiny")
    assert (model["type"], model["display_name"], model["max_input_tokens"]) == ("model", "org/tiny", 256)
    assert (await client.get("/v1/models/org/tiny", headers=VERSION)).json() == model
    missing = await client.get("/v1/models/other", headers=VERSION)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (await client.get("/v1/models")).json()["object"] == "list"


async def test_a_count_refuses_the_tools_that_a_message_refuses(client, generator):
    tool = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    body = BODY | {"tools": [tool], "tool_choice": {"type": "any"}}
    generator.supports_structured_outputs, generator.max_model_len = True, 1024
    generator.grammar_refusal = InvalidParameter("structured_outputs.json: too much", "structured_outputs")
    message = await client.post("/v1/messages", json=body)
    count = await client.post("/v1/messages/count_tokens", json=body)
    assert (message.status_code, count.status_code) == (400, 400)
    assert count.json()["error"] == message.json()["error"]
    generator.grammar_refusal = None
    other = body | {"tools": [tool | {"name": "sub"}]}
    answer = await client.post("/v1/messages/count_tokens", json=other)
    assert answer.status_code == 200, answer.text
