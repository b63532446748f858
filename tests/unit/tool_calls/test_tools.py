import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.tool_calls.tools import read_tool_choice


def tool(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("choice", "mode", "names", "max_calls"),
    [
        (None, "auto", ["f", "g"], None),
        ("auto", "auto", ["f", "g"], None),
        ("required", "required", ["f", "g"], None),
        (NAMED, "required", ["g"], 1),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, "auto", ["g"], None),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, "required", ["g"], None),
    ],
)
def test_a_choice_has_its_tools_and_mode(choice, mode, names, max_calls):
    read = read_tool_choice([tool("f"), tool("g")], choice)
    assert (read.mode, [each.name for each in read.tools], read.max_calls) == (mode, names, max_calls)


def test_no_tool_may_be_called_without_tools_or_by_choice():
    assert read_tool_choice([tool()], "none") is None
    assert read_tool_choice(None, "auto") is None
    assert read_tool_choice([], None) is None
    assert read_tool_choice([tool()], None, parallel=False).max_calls == 1


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ([{"type": "web_search"}], None, "tools.0.type"),
        ([{"type": "function"}], None, "tools.0.function"),
        ([tool("")], None, "tools.0.function.name"),
        ([tool('a"b')], None, "tools.0.function.name"),
        ([tool("a" * 257)], None, "tools.0.function.name"),
        ([tool(description=5)], None, "tools.0.function.description"),
        ([tool(parameters=[])], None, "tools.0.function.parameters"),
        ([tool(strict="yes")], None, "tools.0.function.strict"),
        ([tool(), tool()], None, "tools"),
        ([tool(f"f{index}") for index in range(513)], None, "tools"),
        ([tool()], "sometimes", "tool_choice"),
        ([tool()], NAMED, "tool_choice"),
        ([tool()], {"type": "function"}, "tool_choice"),
        ([tool()], {"type": "allowed_tools"}, "tool_choice"),
        ([tool()], {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [NAMED]}}, "tool_choice"),
        ([tool()], {"type": "allowed_tools", "allowed_tools": {"tools": ["g"]}}, "tool_choice"),
        (None, "required", "tool_choice"),
    ],
)
def test_what_is_no_tool_or_choice_is_refused_by_field(tools, choice, field):
    with pytest.raises(InvalidParameter) as refusal:
        read_tool_choice(tools, choice)
    assert refusal.value.param == field
