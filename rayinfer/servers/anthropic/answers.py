"""Anthropic's answers: one message, or events for the beginning, the pieces and the end of each block."""

import json
from collections.abc import Iterator
from typing import Any

from rayinfer.servers.error_formats import anthropic_error
from rayinfer.servers.error_responses import error_body
from rayinfer.servers.generation.chat import FastEncoding, PreparedChat, SingleAnswer
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta, ToolCallDelta

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class MessageAnswer(SingleAnswer):
    """The collector of a whole message."""

    def __init__(self, chat: PreparedChat, message_id: str) -> None:
        super().__init__(chat)
        self._id = message_id
        self._model = chat.request.model.name

    def body(self) -> dict[str, Any]:
        """Return the message; raises RequestFailed when it has not ended."""
        self.check_is_complete()
        return self.message(list(self._blocks()), **self.stop(), usage=self.usage())

    def message(self, content: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """Return a message with this content."""
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, **fields}

    def stop(self) -> dict[str, Any]:
        """Return why the message ended, and by which of the client's stop sequences."""
        answer = self.answer
        sequence = answer.stop_reason if isinstance(answer.stop_reason, str) else None
        reason = _REASONS.get(answer.finish_reason or "", "stop_sequence" if sequence is not None else "end_turn")
        return {"stop_reason": reason, "stop_sequence": sequence}

    def usage(self) -> dict[str, Any]:
        """Return the usage so far; cached tokens are counted apart."""
        return {
            "input_tokens": self.num_prompt_tokens - self.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.num_cached_tokens,
            "output_tokens": self.answer.num_tokens,
        }

    def _blocks(self) -> Iterator[dict[str, Any]]:
        if self.answer.reasoning:
            yield {"type": "thinking", "thinking": self.answer.reasoning, "signature": ""}
        if self.answer.text:
            yield {"type": "text", "text": self.answer.text}
        for call in self.answer.tool_calls:
            yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.parsed_arguments()}


class MessageEvents(FastEncoding):
    """The writer of a streamed message."""

    def __init__(self, answer: MessageAnswer) -> None:
        self._answer = answer
        self._has_begun = False
        self._num_blocks = 0
        self._open: tuple[str, int] | None = None  # kind of the open block, and index of its call

    def opening(self) -> bytes:
        """Encode what precedes the first output: nothing, as the first event has what was cached."""
        return b""

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output; raises the error of a choice that failed."""
        deltas = self._answer.add(prompt_output)
        pieces: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            usage = {**self._answer.usage(), "output_tokens": 0}
            message = self._answer.message([], stop_reason=None, stop_sequence=None, usage=usage)
            pieces += [_event({"type": "message_start", "message": message}), PING]
        for delta in deltas:
            pieces += self._pieces(delta)
        return b"".join(pieces)

    def ending(self) -> bytes:
        """Encode the end of the message; raises RequestFailed when it has not ended."""
        self._answer.check_is_complete()
        delta = {"type": "message_delta", "delta": self._answer.stop(), "usage": self._answer.usage()}
        return b"".join([*self._close(), _event(delta), _event({"type": "message_stop"})])

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream after its first output."""
        return b"event: error\ndata: " + error_body(error, anthropic_error) + b"\n\n"

    def _pieces(self, delta: ChatDelta) -> Iterator[bytes]:
        match delta:
            case TextDelta():
                yield from self._within(("text", 0), {"type": "text", "text": ""})
                piece = {"type": "text_delta", "text": delta.text}
            case ReasoningDelta():
                yield from self._within(("thinking", 0), {"type": "thinking", "thinking": "", "signature": ""})
                piece = {"type": "thinking_delta", "thinking": delta.text}
            case ToolCallDelta():
                block: dict[str, Any] = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                yield from self._within(("tool_use", delta.index), block)
                piece = {"type": "input_json_delta", "partial_json": delta.arguments}
        yield _event({"type": "content_block_delta", "index": self._num_blocks - 1, "delta": piece})

    def _within(self, kind: tuple[str, int], block: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block unless one of the kind is open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._num_blocks += 1
        yield _event({"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event({"type": "content_block_stop", "index": self._num_blocks - 1})


def _event(data: dict[str, Any]) -> bytes:
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return b"event: %b\ndata: %b\n\n" % (str(data["type"]).encode(), encoded)
