"""Conversations with tool calls in the form that templates take, with or without tools of their own."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.tool_calls.formats import ToolFormat

_PROMPT = """You may call one or more functions to help with the user's request.
The functions, each with a JSON schema of its parameters, are within <tools></tools>:
<tools>
{tools}
</tools>
To call a function, answer with a JSON object of its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def template_history(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Return messages whose calls and results the template can write; with a system prompt where it knows no tools."""
    decoded = [_decoded(message, tool_format) for message in messages]
    return _prompted(decoded, tools) if tool_format.is_prompted else decoded


def _decoded(message: Mapping[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    """Turn the arguments of a message's calls into objects, and ids into short ones, where the template wants them.

    Of gpt-oss's calls the reasoning goes with them: the model reads it again until its final answer.
    """
    changed = dict(message)
    if isinstance(message.get("tool_calls"), list):
        changed["tool_calls"] = [_decoded_call(call, tool_format) for call in message["tool_calls"]]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if tool_format.is_harmony and isinstance(reasoning, str) and not message.get("content"):
            changed.setdefault("thinking", reasoning)  # the template's name; it refuses one beside content
    if tool_format.has_short_ids and isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return changed


def _decoded_call(call: Any, tool_format: ToolFormat) -> Any:
    if not isinstance(call, Mapping):
        return call
    changed, function = dict(call), call.get("function")
    if tool_format.has_short_ids and isinstance(call.get("id"), str):
        changed["id"] = _short_id(call["id"])
    if isinstance(function, Mapping) and not tool_format.takes_argument_text:
        changed["function"] = {**function, "arguments": _object(function.get("arguments"))}
    return changed


def _object(arguments: Any) -> Any:
    """Return arguments as an object; text that is none stays as it is, as models write such as well."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _short_id(name: str) -> str:
    return name if len(name) == 9 and name.isalnum() else hashlib.sha256(name.encode()).hexdigest()[:9]


def _prompted(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe tools in the system prompt, and write calls and results as text."""
    prompt = _PROMPT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)) if tools else ""
    written: list[dict[str, Any]] = []
    for message in messages:
        role, content = message.get("role"), _text(message.get("content"))
        if role == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if written and written[-1].get("is_results"):
                written[-1]["content"] += f"\n{content}"
            else:
                written.append({"role": "user", "content": content, "is_results": True})
        elif role == "assistant" and message.get("tool_calls"):
            calls = [_call_text(call) for call in message["tool_calls"]]
            written.append({"role": role, "content": "\n".join([*([content] if content else []), *calls])})
        else:
            written.append(message)
    if prompt and written and written[0].get("role") == "system":
        system = _text(written[0].get("content"))
        written[0] = {**written[0], "content": f"{system}\n\n{prompt}" if system else prompt}
    elif prompt:
        written.insert(0, {"role": "system", "content": prompt})
    return [{key: value for key, value in message.items() if key != "is_results"} for message in written]


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    text = json.dumps({"name": function.get("name"), "arguments": function.get("arguments") or {}}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
