"""Ollama's answers: one object, or a line of JSON for each piece."""

import json
import time
from collections.abc import Sequence
from typing import Any

from rayinfer.servers.error_formats import ollama_error
from rayinfer.servers.error_responses import error_body
from rayinfer.servers.generation.chat import FastEncoding, PreparedChat, SingleAnswer
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.generation.timestamps import timestamp
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta

NDJSON = "application/x-ndjson"


class OllamaAnswer(FastEncoding):
    """The collector of a whole answer, and the writer of a stream."""

    def __init__(self, chat: PreparedChat, name: str, received_s: float, *, is_chat: bool) -> None:
        self._single = SingleAnswer(chat)
        self._name = name  # as the client wrote it
        self._received_s = received_s
        self._first_s: float | None = None
        self._is_chat = is_chat

    def add(self, prompt_output: PromptOutput) -> Sequence[ChatDelta]:
        """Add an output and return its deltas; raises the error of a failed choice."""
        if self._first_s is None:
            self._first_s = time.time()
        return self._single.add(prompt_output)

    def body(self) -> dict[str, Any]:
        """Return the whole answer; raises RequestFailed when it has not ended."""
        answer = self._single.answer
        return {**self._piece(answer.text, answer.reasoning, self._tool_calls()), **self._end()}

    def opening(self) -> bytes:
        """Encode what precedes the first output: nothing."""
        return b""

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        lines: list[bytes] = []
        for delta in self.add(prompt_output):
            if isinstance(delta, TextDelta):
                lines.append(_line(self._piece(delta.text)))
            elif isinstance(delta, ReasoningDelta):
                lines.append(_line(self._piece("", delta.text)))
        return b"".join(lines)

    def ending(self) -> bytes:
        """Encode the calls in a line of their own, and the last line; raises RequestFailed if there is more to come."""
        last = _line({**self._piece(""), **self._end()})
        calls = self._tool_calls()
        return _line(self._piece("", tool_calls=calls)) + last if calls else last

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream after its first output."""
        return error_body(error, ollama_error) + b"\n"

    def keep_alive(self) -> bytes:
        """Encode a piece without text, which clients add to nothing."""
        return _line(self._piece(""))

    def _tool_calls(self) -> list[dict[str, Any]]:
        """Return whole calls, which clients get in one piece; the arguments of one that was cut are empty."""
        calls = self._single.answer.tool_calls
        return [{"function": {"name": call.name, "arguments": call.parsed_arguments()}} for call in calls]

    def _piece(self, text: str, reasoning: str = "", tool_calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self._name, "created_at": timestamp(time.time())}
        if self._is_chat:
            fields["message"] = {"role": "assistant", "content": text}
            if reasoning:
                fields["message"]["thinking"] = reasoning
            if tool_calls:
                fields["message"]["tool_calls"] = list(tool_calls)
        else:
            fields["response"] = text
            if reasoning:
                fields["thinking"] = reasoning
        return {**fields, "done": False}

    def _end(self) -> dict[str, Any]:
        self._single.check_is_complete()
        now, first_s = time.time(), self._first_s or time.time()
        return {
            "done": True,
            "done_reason": "length" if self._single.answer.finish_reason == "length" else "stop",
            "total_duration": _nanoseconds(now - self._received_s),
            "load_duration": 0,
            "prompt_eval_count": self._single.num_prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first_s - self._received_s),
            "eval_count": self._single.answer.num_tokens,
            "eval_duration": _nanoseconds(now - first_s),
        }


def loaded_answer(name: str, *, is_chat: bool) -> dict[str, Any]:
    """Return the answer to a request without a prompt, by which clients have a model loaded, or unloaded."""
    empty: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    return {"model": name, "created_at": timestamp(time.time()), **empty, "done_reason": "load", "done": True}


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
