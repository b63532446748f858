"""The output items of a response, and the events of their beginning, pieces and end."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta, ToolCallDelta

Event = dict[str, Any]  # without its sequence number


class ResponseOutput:
    """Items in the order in which the model wrote them; the last one may be open."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: tuple[str, int] | None = None  # kind of the open item, and index of its call
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is yet to come

    def add_logprobs(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add the log probabilities of the tokens that the next deltas are made of; they go with the next text."""
        self._logprobs += [_with_bytes(entry) for entry in entries]

    def add(self, delta: ChatDelta) -> Iterator[Event]:
        """Add a delta and yield its events."""
        match delta:
            case TextDelta():
                yield from self._within(("message", 0), delta)
                logprobs = self._logprobs if delta.text else []
                self.items[-1]["content"][0]["logprobs"] += logprobs
                yield from self._add_text(delta.text, "output_text", {"logprobs": logprobs})
            case ReasoningDelta():
                yield from self._within(("reasoning", 0), delta)
                yield from self._add_text(delta.text, "reasoning_text", {})
            case ToolCallDelta():
                yield from self._within(("function_call", delta.index), delta)
                if delta.arguments:
                    self.items[-1]["arguments"] += delta.arguments
                    yield self._event("function_call_arguments.delta", delta=delta.arguments)

        if not isinstance(delta, TextDelta) or delta.text:
            self._logprobs = []  # those of reasoning and calls are not returned

    def end(self, status: str) -> Iterator[Event]:
        """End the last item with this status; there is always a message or a call."""
        if not any(item["type"] != "reasoning" for item in self.items):
            yield from self._within(("message", 0), TextDelta(""))
        if self.items[-1]["type"] == "message":
            self.items[-1]["content"][0]["logprobs"] += self._logprobs  # of tokens without text
        yield from self._close(status)

    def _within(self, kind: tuple[str, int], delta: ChatDelta) -> Iterator[Event]:
        """Begin an item unless one of the kind is open."""
        if self._open == kind:
            return
        yield from self._close("completed")
        self._open = kind
        item, part = _begun(delta)
        self.items.append(item)
        added = {**item, "content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": added}
        if part is not None:
            yield self._event("content_part.added", content_index=0, part=dict(part))

    def _add_text(self, text: str, kind: str, more: Mapping[str, Any]) -> Iterator[Event]:
        if text:
            self.items[-1]["content"][0]["text"] += text
            yield self._event(f"{kind}.delta", content_index=0, delta=text, **more)

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        self._open = None
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            yield self._event("function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            more: dict[str, Any] = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
            yield self._event(f"{part['type']}.done", content_index=0, text=part["text"], **more)
            yield self._event("content_part.done", content_index=0, part=dict(part))
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}


def _begun(delta: ChatDelta) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a new item, and its part if it has one."""
    name = uuid.uuid4().hex
    if isinstance(delta, ToolCallDelta):
        call = {"call_id": delta.id, "name": delta.name, "arguments": ""}
        return {"id": f"fc_{name}", "type": "function_call", "status": "in_progress", **call}, None
    if isinstance(delta, ReasoningDelta):
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        item = {
            "id": f"rs_{name}",
            "type": "reasoning",
            "status": "in_progress",
            "summary": [],
            "content": [dict(part)],
        }
        return item, part
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item = {"id": f"msg_{name}", "type": "message", "status": "in_progress", "role": "assistant"}
    return {**item, "content": [{**part, "logprobs": []}]}, part


def _with_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a chat's log probabilities in the Responses API's form, in which bytes are never null."""
    changed = {**entry, "bytes": entry["bytes"] or []}
    if "top_logprobs" in entry:
        changed["top_logprobs"] = [_with_bytes(each) for each in entry["top_logprobs"]]
    return changed
