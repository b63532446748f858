"""Answers of each family with tool calls, and what they mean."""

import json
from dataclasses import dataclass
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "object"}},
    },
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "now": {"type": "object", "properties": {}},
}
WEATHER = {"city": 'Saint-Étienne "Nord" }]', "days": 3, "units": {"wind": ["km/h", "m/s"]}}
ADD = {"a": 1.5, "b": -2}
_W, _A = json.dumps(WEATHER, ensure_ascii=False), json.dumps(ADD)
_W_OBJECT, _A_OBJECT = f'{{"name": "get_weather", "arguments": {_W}}}', f'{{"name": "add", "arguments": {_A}}}'
_PYTHON = "get_weather(city='Saint-Étienne \"Nord\" }]', days=3, units={'wind': ['km/h', 'm/s']}), add(a=1.5, b=-2)"
_LINES = _PYTHON.replace(", add", "\nadd")
_Q = '<|"|>'
_GEMMA = f'{{city:{_Q}Saint-Étienne "Nord" }}]{_Q},days:3,units:{{wind:[{_Q}km/h{_Q},{_Q}m/s{_Q}]}}}}'
_XML = """<tool_call>
<function=get_weather>
<parameter=city>
Saint-Étienne "Nord" }]
</parameter>
<parameter=days>
3
</parameter>
<parameter=units>
{"wind": ["km/h", "m/s"]}
</parameter>
</function>
</tool_call>
<tool_call>
<function=add>
<parameter=a>1.5</parameter>
<parameter=b>-2</parameter>
</function>
</tool_call>"""
_BEGIN, _END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BOTH = (("get_weather", WEATHER), ("add", ADD))


@dataclass(frozen=True)
class Recording:
    """An answer and its parts."""

    name: str
    format: str
    answer: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = BOTH
    text: str = ""
    reasoning: str = ""
    has_tags: bool = False


def _fenced(name: str, arguments: str) -> str:
    return f"{_BEGIN}function{_SEPARATOR}{name}\n```json\n{arguments}\n```{_END}"


RECORDINGS = (
    Recording(
        "hermes",
        "hermes",
        f"I look < it > up.\n<tool_call>\n{_W_OBJECT}\n</tool_call>\n<tool_call>\n{_A_OBJECT}\n</tool_call>",
        text="I look < it > up.",
    ),
    Recording(
        "qwen3",
        "hermes",
        "<think>\nWhich < tool?\n</think>\n\n"
        f"<tool_call>\n{_W_OBJECT}\n</tool_call>\n<tool_call>{_A_OBJECT}</tool_call>\n",
        reasoning="Which < tool?\n",
        has_tags=True,
    ),
    Recording("smollm2", "hermes", f"<tool_call>[{_W_OBJECT}, {_A_OBJECT}]</tool_call>"),
    Recording(
        "arguments first, as text",
        "hermes",
        f'<tool_call>{{"arguments": {_W}, "name": "get_weather"}}</tool_call>'
        f'<tool_call>{{"id": 1, "name": "add", "arguments": {json.dumps(_A)}}}</tool_call> Done.',
        text=" Done.",
    ),
    Recording(
        "no arguments",
        "hermes",
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>',
        calls=(("now", {}), ("now", {})),
    ),
    Recording("qwen3_coder", "qwen3_coder", f"Let me see.\n\n{_XML}", text="Let me see."),
    Recording("qwen3_coder without its wrapper", "qwen3_coder", _XML.removeprefix("<tool_call>\n")),
    Recording(
        "llama3",
        "llama3_json",
        f"<|python_tag|>{_W_OBJECT}; {_A_OBJECT}<|eom_id|>".replace('"arguments"', '"parameters"'),
    ),
    Recording("llama3 without a tag", "llama3_json", f"\n{_W_OBJECT};\n{_A_OBJECT}".replace("arguments", "parameters")),
    Recording("llama3 answer", "llama3_json", '{"city": "Oslo"} is JSON.', (), text='{"city": "Oslo"} is JSON.'),
    Recording("llama3 code", "llama3_json", "<|python_tag|>print({1: 2})", (), text="<|python_tag|>print({1: 2})"),
    Recording("pythonic", "pythonic", f"[{_PYTHON}]<|eot_id|>"),
    Recording("llama4", "pythonic", f"Sure.<|python_start|>[{_PYTHON}]<|python_end|><|eom|>", text="Sure."),
    Recording("pythonic answer", "pythonic", "[see (1)] x(a=1)", (), text="[see (1)] x(a=1)"),
    Recording(
        "olmo3",
        "olmo",
        f"I look.\n<function_calls>\n{_LINES}\n</function_calls>",
        text="I look.",
    ),
    Recording(
        "olmo3 without calls", "olmo", "<function_calls></function_calls>", (), text="<function_calls></function_calls>"
    ),
    Recording("mistral list", "mistral", f"[TOOL_CALLS][{_W_OBJECT}, {_A_OBJECT}]</s>"),
    Recording(
        "mistral",
        "mistral",
        f"Ok.[TOOL_CALLS]get_weather[ARGS]{_W}[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{_A}",
        text="Ok.",
    ),
    Recording(
        "gemma",
        "gemma",
        f"<|tool_call>call:get_weather{_GEMMA}<tool_call|><|tool_call>call:add{{a:1.5,b:-2}}<tool_call|><|tool_response>",
    ),
    Recording(
        "functiongemma",
        "gemma",
        f"<start_function_call>call:get_weather{_GEMMA}<end_function_call>"
        "<start_function_call>call:add{a:1.5,b:-2}<end_function_call>".replace(_Q, "<escape>"),
    ),
    Recording("phi4_mini", "phi4_mini", f"functools[{_W_OBJECT}, {_A_OBJECT}]<|end|>"),
    Recording("phi4_mini tags", "phi4_mini", f"<|tool_call|>[{_W_OBJECT},{_A_OBJECT}]<|/tool_call|>"),
    Recording("granite", "granite", f"<|tool_call|>[{_W_OBJECT}, {_A_OBJECT}]<|end_of_text|>"),
    Recording(
        "deepseek v3",
        "deepseek",
        f"{_CALLS_BEGIN}{_fenced('get_weather', _W)}\n{_fenced('add', _A)}{_CALLS_END}<｜end▁of▁sentence｜>",
    ),
    Recording(
        "deepseek v3.1",
        "deepseek",
        f"Hm.{_CALLS_BEGIN}{_BEGIN}get_weather{_SEPARATOR}{_W}{_END}{_BEGIN}add{_SEPARATOR}{_A}{_END}{_CALLS_END}",
        text="Hm.",
    ),
    Recording(
        "gpt-oss",
        "harmony",
        "<|channel|>analysis<|message|>We need < tools.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{_W}<|call|>"
        f"<|start|>assistant to=functions.add<|channel|>commentary<|message|>{_A}<|call|>",
        text="Wait.",
        reasoning="We need < tools.",
    ),
    Recording(
        "gpt-oss answer",
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
        (),
        text="Four.",
        reasoning="Easy.",
    ),
    Recording("generic", "generic", f"<tool_call>\n{_W_OBJECT}\n</tool_call>\n<tool_call>\n{_A_OBJECT}\n</tool_call>"),
    Recording("generic without tags", "generic", f"{_W_OBJECT}\n{_A_OBJECT}"),
)
