import json
from typing import Any

import pytest

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


@pytest.mark.parametrize("name", ["hermes", "harmony"])  # whose templates write them as JSON
def test_arguments_become_objects(name: str) -> None:
    messages = template_history(HISTORY, [TOOL], FORMATS[name])
    assert [each["function"]["arguments"] for each in messages[1]["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert messages[2:] == HISTORY[2:]
    assert HISTORY[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_reasoning_before_calls_is_what_gpt_oss_thinks() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [call("{}")], "reasoning_content": "I should add."}
    assert template_history([message], [TOOL], FORMATS["harmony"])[0]["thinking"] == "I should add."
    assert "thinking" not in template_history([message | {"content": "Well."}], [TOOL], FORMATS["harmony"])[0]
    assert "thinking" not in template_history([message], [TOOL], FORMATS["hermes"])[0]


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
