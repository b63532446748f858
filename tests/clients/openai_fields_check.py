"""Checks of each field of chat completions, structured outputs and tools as OpenAI, vLLM and TGI document them."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
TAGGED = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
FORM = {"choice": ["yes", "no"]}
THINKING = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=120, trust_env=False)


def chat(url: str, model: str, **fields: Any) -> dict[str, Any]:
    answer = post(url, CHAT, {"model": model, "messages": ASK, "max_tokens": 120, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def message(url: str, model: str, **fields: Any) -> dict[str, Any]:
    return chat(url, model, **fields)["choices"][0]["message"]


def refused(url: str, model: str, param: str, path: str = CHAT, **fields: Any) -> None:
    prompt = {"messages": ASK} if path == CHAT else {"prompt": "a"}
    answer = post(url, path, {"model": model, "max_tokens": 4, **prompt, **fields})
    assert answer.status_code == 400, (fields, answer.status_code, answer.text)
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), (fields, error)
    assert error["message"]


def chunks(url: str, model: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": model, "messages": ASK, "max_tokens": 120, "temperature": 0, "stream": True, **fields}
    answer = post(url, CHAT, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part.startswith("data: ")]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def check_every_kind_of_structured_outputs(url: str, model: str) -> None:
    for form, is_valid in (
        ({"json": SCHEMA}, lambda text: set(json.loads(text)) == {"city", "unit"}),
        ({"json": json.dumps(SCHEMA), "disable_any_whitespace": True}, lambda text: not re.search(r'": ', text)),
        ({"json_object": True}, lambda text: text.startswith("{")),
        ({"regex": "[A-C]{4}-[0-9]{2}"}, re.compile("[A-C]{4}-[0-9]{2}").fullmatch),
        ({"choice": ["north", "south"]}, ["north", "south"].__contains__),
        ({"grammar": 'root ::= "x" [0-9]+ "y"'}, re.compile("x[0-9]+y?").fullmatch),
        ({"grammar": 'start: "p" /[0-9]{1,3}/ "q"'}, re.compile("p[0-9]{1,3}q").fullmatch),
        ({"structural_tag": json.dumps(TAGGED)}, lambda text: "<f>" not in text or "</f>" in text),
    ):
        for seed in range(3):
            said = message(url, model, structured_outputs=form, temperature=1, seed=seed, max_tokens=60)["content"]
            assert is_valid(said), (form, said)
        text = post(url, COMPLETIONS, {"model": model, "prompt": "It is", "structured_outputs": form, "max_tokens": 60})
        assert is_valid(text.json()["choices"][0]["text"]), (form, text.text)


def check_response_formats(url: str, model: str) -> None:
    named = {"name": "answer", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": named}
    assert set(json.loads(message(url, model, response_format=form)["content"])) == {"city", "unit"}
    assert message(url, model, response_format={"type": "json_object"})["content"].startswith("{")
    assert message(url, model, response_format={"type": "text"})["content"]
    assert message(url, model, response_format=TAGGED)["content"]
    refused(url, model, "response_format", response_format={"type": "json_schema"})
    refused(url, model, "response_format", response_format={"type": "json_schema", "json_schema": {"name": "a"}})
    refused(url, model, "response_format", response_format={"type": "xml"})


def check_what_a_grammar_cannot_express_is_refused(url: str, model: str) -> None:
    for form in (
        {},
        {"regex": "a", "choice": ["a"]},
        {"json": {"type": "array", "uniqueItems": True}},
        {"json": "{"},
        {"regex": "("},
        {"regex": "^(?=.*x)y$"},
        {"grammar": "root ::= nothing"},
        {"choice": []},
        {"regex": "a", "backend": "x"},
    ):
        refused(url, model, "structured_outputs", structured_outputs=form)
    for field in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "functions", "function_call"):
        refused(url, model, field, **{field: "a"})


def check_settings_that_contradict_a_grammar_are_refused(url: str, model: str) -> None:
    for path in (CHAT, COMPLETIONS):
        for field, value in {
            "min_tokens": 2,
            "allowed_token_ids": [5],
            "bad_words": ["yes"],
            "ignore_eos": True,
        }.items():
            refused(url, model, field, path, structured_outputs=FORM, **{field: value})
    refused(url, model, "structured_outputs", structured_outputs=FORM, response_format={"type": "json_object"})
    refused(url, model, "structured_outputs", structured_outputs=FORM, tools=TOOLS, tool_choice=NAMED)
    refused(url, model, "min_tokens", min_tokens=2, tools=TOOLS, tool_choice="required")


def check_a_grammar_holds_beside_other_settings(url: str, model: str) -> None:
    choices = chat(url, model, structured_outputs=FORM, n=4, temperature=1.5, logprobs=True, top_logprobs=2, seed=1)
    for choice in choices["choices"]:
        assert choice["message"]["content"] in FORM["choice"]
        assert choice["logprobs"]["content"][0]["top_logprobs"]
    for settings in ({"repetition_penalty": 1.5}, {"logit_bias": {"5": 50}}, {"min_p": 0.1}, {"typical_p": 0.5}):
        assert message(url, model, structured_outputs=FORM, temperature=1, **settings)["content"] in FORM["choice"]
    cut = chat(url, model, structured_outputs={"regex": "a{50}b"}, max_tokens=3)["choices"][0]
    assert cut["finish_reason"] == "length"


def check_the_grammar_of_tgi(url: str, model: str) -> None:
    for grammar, pattern in (
        ({"type": "regex", "value": "[ab]{6}"}, "[ab]{6}"),
        ({"type": "json", "value": SCHEMA}, r"\{.*"),
        ({"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}, r"\{.*"),
    ):
        parameters = {"grammar": grammar, "max_new_tokens": 60}
        answer = post(url, f"/models/{model}/generate", {"inputs": "It is", "parameters": parameters})
        assert re.fullmatch(pattern, answer.json()["generated_text"], re.DOTALL), answer.text
    bad = {"inputs": "a", "parameters": {"grammar": {"type": "xml", "value": ""}}}
    answer = post(url, f"/models/{model}/generate", bad)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


def check_choices_of_tools(url: str, model: str) -> None:
    assert "tool_calls" not in message(url, model, tools=TOOLS, tool_choice="none")
    assert message(url, model, tools=TOOLS, tool_choice="auto")["role"] == "assistant"
    for choice in ("required", NAMED):
        whole = chat(url, model, tools=TOOLS, tool_choice=choice, max_tokens=300)["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        for call in whole["message"]["tool_calls"]:
            assert (call["type"], bool(call["id"])) == ("function", True)
            if call["function"]["name"] == "get_weather":
                assert set(json.loads(call["function"]["arguments"])) == {"city", "unit"}
    one = message(url, model, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300)
    assert len(one["tool_calls"]) == 1
    named = message(url, model, tools=TOOLS, tool_choice=NAMED, max_tokens=300)["tool_calls"]
    assert [call["function"]["name"] for call in named] == ["get_weather"]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    found = message(url, model, tools=TOOLS, tool_choice=choice, max_tokens=300)["tool_calls"]
    assert {call["function"]["name"] for call in found} == {"get_time"}


def check_refusals_of_tools(url: str, model: str) -> None:
    unknown = {"type": "function", "function": {"name": "unknown"}}
    for param, fields in (
        ("tools", {"tools": []}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": NAMED}),
        ("tool_choice", {"tool_choice": "sometimes", "tools": TOOLS}),
        ("tool_choice", {"tool_choice": unknown, "tools": TOOLS}),
        ("tool_choice", {"tool_choice": {"type": "function"}, "tools": TOOLS}),
        ("tools", {"tools": [WEATHER, WEATHER]}),
        ("tools.0.type", {"tools": [{"type": "custom", "custom": {"name": "a"}}]}),
    ):
        refused(url, model, param, **fields)


def check_deltas_of_calls(url: str, model: str) -> None:
    settings = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300}
    whole = chat(url, model, **settings)["choices"][0]
    found: dict[int, dict[str, str]] = {}
    events = chunks(url, model, stream_options={"include_usage": True}, **settings)
    for event in events[:-1]:
        assert event["usage"] is None
        for call in event["choices"][0]["delta"].get("tool_calls", ()):
            if call["index"] not in found:
                assert call["type"] == "function"
                found[call["index"]] = {"name": call["function"]["name"], "arguments": "", "id": call["id"]}
            else:
                assert not call.get("id")
                assert "name" not in call["function"]
            found[call["index"]]["arguments"] += call["function"].get("arguments", "")
    assert events[-1]["choices"] == []
    assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]
    functions = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [(call["name"], call["arguments"]) for call in found.values()] == [
        (each["name"], each["arguments"]) for each in functions
    ]
    cut = chunks(url, model, **settings | {"max_tokens": 12})
    assert cut[-1]["choices"][0]["finish_reason"] == "length"


def check_histories_with_parallel_results(url: str, model: str) -> None:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        for i, arguments in enumerate(['{"city":"Paris"}', '{"city":"Rome"}'])
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"{30 + i}"} for i, call in enumerate(calls)]
    history = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert message(url, model, messages=history, tools=TOOLS, tool_choice="none")["content"]


def check_reasoning_is_split_off(url: str, model: str) -> None:
    settings = {"chat_template": THINKING, "max_tokens": 12, "ignore_eos": True}
    whole = chat(url, model, **settings)
    said = whole["choices"][0]["message"]
    assert said["reasoning_content"] == said["reasoning"]
    assert said["reasoning"]
    assert not said["content"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 12
    deltas = [event["choices"][0]["delta"] for event in chunks(url, model, **settings)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == said["reasoning"]
    hidden = message(url, model, include_reasoning=False, **settings)
    assert not hidden.get("reasoning")
    held = {"chat_template": THINKING, "structured_outputs": FORM, "logit_bias": {}, "max_tokens": 200}
    answer = chat(url, model, **held)["choices"][0]
    assert answer["finish_reason"] == "length" or answer["message"]["content"] in FORM["choice"]


def check_fields_of_chats(url: str, model: str) -> None:
    assert chat(url, model, max_completion_tokens=2, max_tokens=9)["usage"]["completion_tokens"] == 2
    assert message(url, model, reasoning_effort="low", verbosity="low", max_tokens=4)["role"] == "assistant"
    assert message(url, model, chat_template_kwargs={"enable_thinking": False}, max_tokens=4)["role"] == "assistant"
    developer = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert message(url, model, messages=developer, max_tokens=4)["role"] == "assistant"  # fmt: skip
    for param, fields in (
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("messages", {"messages": []}),
        ("messages.0.role", {"messages": [{"role": "pope", "content": "a"}]}),
        ("modalities", {"modalities": ["audio"]}),
        ("audio", {"audio": {"voice": "a", "format": "wav"}}),
    ):
        refused(url, model, param, **fields)


if __name__ == "__main__":
    run_checks(globals())
