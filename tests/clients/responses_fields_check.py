"""Checks of each field, event and refusal of the Responses API as its documents have them."""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks
from wire import ask, events, kinds_of

RESPONSES = "/v1/responses"
QUESTION = "What is the capital of France?"
ASK = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA}
# Open Responses' required keys.
KEYS = {
    *("id", "object", "created_at", "completed_at", "status"),
    *("incomplete_details", "model", "previous_response_id", "instructions", "output"),
    *("error", "tools", "tool_choice", "truncation", "parallel_tool_calls"),
    *("text", "top_p", "temperature", "top_logprobs", "reasoning"),
    *("usage", "max_output_tokens", "max_tool_calls", "store", "background"),
    *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
}
LOGPROBS = "message.output_text.logprobs"


def respond(url: str, model: str, status: int = 200, **fields: Any) -> Any:
    body = {"model": model, "input": QUESTION, "max_output_tokens": 16, "temperature": 0, **fields}
    return ask("POST", url, RESPONSES, status, body)


def check_a_response_has_all_keys(url: str, model: str) -> None:
    settings = {"metadata": {"a": "b"}, "instructions": "Be brief.", "safety_identifier": "s", "prompt_cache_key": "p"}
    response = respond(url, model, **settings)
    assert set(response) >= KEYS
    assert {name: response[name] for name in settings} == settings
    assert response["status"] in ("completed", "incomplete")
    assert response["usage"]["input_tokens_details"]["cached_tokens"] >= 0
    assert ask("GET", url, f"{RESPONSES}/{response['id']}") == response


def check_events_of_a_response_in_their_order(url: str, model: str) -> None:
    found = events(url, RESPONSES, {"model": model, "input": QUESTION, "max_output_tokens": 8, "temperature": 0})
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert kinds_of(found)[:-1] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    final = found[-1]["response"]
    assert found[-1]["type"] == f"response.{final['status']}"
    assert final["output"][0]["content"][0]["text"] == text
    if final["status"] == "incomplete":
        assert final["incomplete_details"] == {"reason": "max_output_tokens"}


def check_events_of_a_call(url: str, model: str) -> None:
    body = {"model": model, "input": QUESTION, "tools": [FUNCTION], "temperature": 0, "max_output_tokens": 200}
    found = events(url, RESPONSES, body | {"tool_choice": {"type": "function", "name": "get_weather"}})
    assert kinds_of(found) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    (item,) = found[-1]["response"]["output"]
    assert set(json.loads(item["arguments"])) == {"city"}
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "31 degrees"}
    more = {"previous_response_id": found[-1]["response"]["id"], "tools": [FUNCTION], "tool_choice": "none"}
    assert respond(url, model, input=[result], **more)["output"][0]["type"] == "message"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    (called, *_) = respond(url, model, tools=[FUNCTION], tool_choice=allowed, max_output_tokens=200)["output"]
    assert called["name"] == "get_weather"


def check_formats_and_log_probabilities_of_a_response(url: str, model: str) -> None:
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    response = respond(url, model, text={"format": form}, max_output_tokens=60)
    assert set(json.loads(response["output"][0]["content"][0]["text"])) == {"city"}
    assert response["text"]["format"] == form
    entries = respond(url, model, include=[LOGPROBS], top_logprobs=2)["output"][0]["content"][0]["logprobs"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def check_stored_responses(url: str, model: str) -> None:
    first = respond(url, model, input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}])
    items = f"{RESPONSES}/{first['id']}/input_items"
    (newest,) = ask("GET", url, items + "?limit=1")["data"]
    (oldest,) = ask("GET", url, f"{items}?after={newest['id']}")["data"]
    assert [oldest["content"], newest["content"]] == ["one", "two"]
    assert ask("GET", url, items + "?order=asc")["data"] == [oldest, newest]
    second = respond(url, model, previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    unkept = respond(url, model, store=False)
    assert unkept["store"] is False
    ask("GET", url, f"{RESPONSES}/{unkept['id']}", 404)
    respond(url, model, 400, previous_response_id=unkept["id"])
    assert ask("DELETE", url, f"{RESPONSES}/{first['id']}")["deleted"]
    ask("GET", url, f"{RESPONSES}/{first['id']}", 404)


def check_the_background(url: str, model: str) -> None:
    response = respond(url, model, background=True)
    assert (response["status"], response["background"]) == ("queued", True)
    until = time.monotonic() + 60
    while response["status"] in ("queued", "in_progress") and time.monotonic() < until:
        time.sleep(0.1)
        response = ask("GET", url, f"{RESPONSES}/{response['id']}")
    assert response["output"][0]["content"][0]["text"]
    long = respond(url, model, background=True, max_output_tokens=1500, temperature=1)
    assert ask("POST", url, f"{RESPONSES}/{long['id']}/cancel")["status"] == "cancelled"
    time.sleep(2)
    assert ask("GET", url, f"{RESPONSES}/{long['id']}")["status"] == "cancelled"
    ask("POST", url, f"{RESPONSES}/{respond(url, model)['id']}/cancel", 400)


def check_truncation_of_a_response(url: str, model: str) -> None:
    long = [{"role": "user", "content": "word " * 6000}, {"role": "user", "content": "and " * 3000}, *ASK]
    error = respond(url, model, 400, input=long)["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert respond(url, model, input=long, truncation="auto")["truncation"] == "auto"


def check_refusals_of_responses(url: str, model: str) -> None:
    for param, fields in (
        ("tools.0.type", {"tools": [{"type": "web_search"}]}),
        ("tools.0.type", {"tools": [{"type": "mcp", "server_label": "a"}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("conversation", {"conversation": "c"}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("include", {"include": ["nonsense"]}),
        ("background", {"background": True, "store": False}),
        ("text.format", {"text": {"format": {"type": "xml"}}}),
        ("input.0.type", {"input": [{"type": "item_reference", "id": "a"}]}),
        ("max_output_tokens", {"max_output_tokens": 0}),
    ):
        error = respond(url, model, 400, **fields)["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert ask("GET", url, f"{RESPONSES}/resp_none", 404)["error"]["message"]


if __name__ == "__main__":
    run_checks(globals())
