import json
from typing import Any

from rayinfer.tool_calls.formats import FORMATS
from rayinfer.tool_calls.histories import template_history

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call(arguments: str, name: str = "call_1") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": "", "tool_calls": [call('{"a": 1}'), call('{"a": 2}', "call_2")]},
    {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    {"role": "tool", "tool_call_id": "call_2", "content": "2"},
]


def test_arguments_become_objects() -> None:
    messages = template_history(HISTORY, [TOOL], FORMATS["hermes"])
    assert [each["function"]["arguments"] for each in messages[1]["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert messages[2:] == HISTORY[2:]
    assert HISTORY[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_arguments_stay_text_where_templates_want_it() -> None:
    assert template_history(HISTORY, [TOOL], FORMATS["deepseek"]) == HISTORY
    broken = [{"role": "assistant", "tool_calls": [call("{oops")]}]
    assert template_history(broken, [TOOL], FORMATS["hermes"]) == broken


def test_short_ids_match_their_results() -> None:
    messages = template_history(HISTORY, [TOOL], FORMATS["mistral"])
    ids = [each["id"] for each in messages[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[2:]]
    assert {len(each) for each in ids} == {9}
    assert len(set(ids)) == 2


def test_generic_describes_tools_and_writes_calls() -> None:
    system, user, assistant, results = template_history(HISTORY, [TOOL], FORMATS["generic"])
    assert system["role"] == "system"
    assert json.dumps(TOOL) in system["content"]
    assert user == HISTORY[0]
    assert assistant["content"].count("<tool_call>") == 2
    assert '{"name": "add", "arguments": {"a": 2}}' in assistant["content"]
    assert results == {
        "role": "user",
        "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
    }


def test_generic_keeps_the_system_prompt() -> None:
    system, _ = template_history([{"role": "system", "content": "Be brief."}, HISTORY[0]], [TOOL], FORMATS["generic"])
    assert system["content"].startswith("Be brief.\n\nYou may call")
