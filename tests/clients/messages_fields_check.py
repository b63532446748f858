"""Checks of each field, event and error of Messages and Ollama as their documents have them."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks
from wire import ask, events, kinds_of

MESSAGES = "/v1/messages"
QUESTION = "What is the capital of France?"
ASK = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
VERSION = {"anthropic-version": "2023-06-01"}


def send(url: str, model: str, status: int = 200, path: str = MESSAGES, **fields: Any) -> Any:
    body = {"model": model, "messages": ASK, "max_tokens": 16, "temperature": 0, **fields}
    return ask("POST", url, path, status, body)


def check_events_of_a_message_in_their_order(url: str, model: str) -> None:
    body = {"model": model, "messages": ASK, "max_tokens": 8, "temperature": 0}
    found = events(url, MESSAGES, body)
    assert kinds_of(found) == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    whole = send(url, model, max_tokens=8)
    text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert found[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def check_fields_of_a_message(url: str, model: str) -> None:
    system = [{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}]
    message = send(url, model, system=system, stop_sequences=["Paris"], metadata={"user_id": "a"}, top_k=5, top_p=0.9)
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", model)
    assert set(message["usage"]) >= {"input_tokens", "output_tokens", "cache_read_input_tokens"}
    if message["stop_reason"] == "stop_sequence":
        assert message["stop_sequence"] == "Paris"
    assert send(url, model, max_tokens=2)["stop_reason"] == "max_tokens"
    for kind in ("disabled", "adaptive"):
        assert send(url, model, thinking={"type": kind})["content"]
    budget = {"type": "enabled", "budget_tokens": 1024}
    assert send(url, model, thinking=budget, max_tokens=1025, stop_sequences=["."])["content"]
    assert "budget_tokens" in send(url, model, 400, thinking=budget, max_tokens=1024)["error"]["message"]
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert set(json.loads(send(url, model, output_config=form, max_tokens=60)["content"][0]["text"])) == {"city"}
    count = send(url, model, path=f"{MESSAGES}/count_tokens", system=system)["input_tokens"]
    usage = send(url, model, system=system, max_tokens=1)["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


def check_tools_of_messages(url: str, model: str) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
        answer = send(url, model, tools=[TOOL], tool_choice=choice, max_tokens=300)
        (block, *_) = answer["content"]
        assert (answer["stop_reason"], block["type"], set(block["input"])) == ("tool_use", "tool_use", {"city"})
    body = {"model": model, "messages": ASK, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
    found = events(url, MESSAGES, body | {"max_tokens": 300, "temperature": 0})
    (start,) = (event for event in found if event["type"] == "content_block_start")
    assert start["content_block"] == {**start["content_block"], "type": "tool_use", "input": {}}
    pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
    assert set(json.loads("".join(pieces))) == {"city"}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "31"}]}
    history = [*ASK, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    assert (
        send(url, model, messages=history, tools=[TOOL], tool_choice={"type": "none"})["content"][0]["type"] == "text"
    )
    assert send(url, model, tools=[TOOL | {"strict": True}], tool_choice={"type": "auto"})["content"]


def check_errors_and_headers_of_messages(url: str, model: str) -> None:
    for status, kind, fields in (
        (400, "invalid_request_error", {"messages": []}),
        (400, "invalid_request_error", {"max_tokens": None}),
        (400, "invalid_request_error", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
        (400, "invalid_request_error", {"tool_choice": {"type": "any"}}),
        (400, "invalid_request_error", {"mcp_servers": [{"type": "url"}]}),
    ):
        error = send(url, model, status, **fields)
        assert (error["type"], error["error"]["type"]) == ("error", kind), error
    assert send(url, "unknown", 404)["error"]["type"] == "not_found_error"
    answer = httpx.post(url + MESSAGES, content=b"{", headers={"content-type": "application/json"}, trust_env=False)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.headers["request-id"]


def check_the_lists_of_models_of_both(url: str, model: str) -> None:
    page = ask("GET", url, "/v1/models", headers=VERSION)
    assert set(page) == {"data", "has_more", "first_id", "last_id"}
    (ours,) = (entry for entry in page["data"] if entry["id"] == model)
    assert (ours["type"], ours["display_name"]) == ("model", model)
    assert ask("GET", url, f"/v1/models/{model}", headers=VERSION)["type"] == "model"
    assert ask("GET", url, "/v1/models/unknown", 404, headers=VERSION)["error"]["type"] == "not_found_error"
    assert ask("GET", url, "/v1/models")["object"] == "list"


def check_ollama_lists_and_shows(url: str, model: str) -> None:
    names = [entry["name"] for entry in ask("GET", url, "/api/tags")["models"]]
    assert f"{model}:latest" in names
    shown = ask("POST", url, "/api/show", body={"model": f"{model}:latest"})
    assert shown["capabilities"] == ["completion", "tools"]
    assert {"modelfile", "parameters", "template", "details", "model_info"} <= set(shown)
    assert "unknown" in ask("POST", url, "/api/show", 404, {"model": "unknown"})["error"]
    for method, name in (
        ("POST", "pull"),
        ("POST", "push"),
        ("POST", "create"),
        ("POST", "copy"),
        ("DELETE", "delete"),
    ):
        assert "not supported" in ask(method, url, f"/api/{name}", 501, {"model": model})["error"]


def check_ollama_streams_by_default(url: str, model: str) -> None:
    options = {"temperature": 0, "num_predict": 4}
    for path, given, text_of in (
        ("/api/chat", {"messages": ASK}, lambda line: line["message"]["content"]),
        ("/api/generate", {"prompt": QUESTION, "system": "Be brief."}, lambda line: line["response"]),
    ):
        body = {"model": f"{model}:latest", "options": options, **given}
        answer = httpx.post(url + path, json=body, timeout=60, trust_env=False)
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        whole = ask("POST", url, path, body=body | {"stream": False})
        assert "".join(map(text_of, lines)) == text_of(whole)
        assert (whole["done_reason"], whole["eval_count"]) == ("length", 4)
        held = ask("POST", url, path, body=body | {"stream": False, "format": SCHEMA, "options": {"num_predict": 60}})
        assert set(json.loads(text_of(held))) == {"city"}
        assert ask("POST", url, path, 404, body | {"model": "unknown"})["error"] == "model 'unknown' not found"
        assert "thinking" in ask("POST", url, path, 400, body | {"think": True})["error"]
        assert ask("POST", url, path, body={"model": model})["done_reason"] == "load"


if __name__ == "__main__":
    run_checks(globals())
