"""Streamed responses as server-sent events: all of a chunk but its text is encoded once per choice."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.outputs import CompletionOutput
from rayinfer.servers.error_responses import error_body
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.generation.server_sent_events import DONE, event
from rayinfer.servers.openai.logprobs_formatter import CompletionLogprobs, PositionLogprobs
from rayinfer.servers.openai.response_settings import SERVICE_TIER, ResponseSettings, UsageCounter
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta, ToolCallDelta


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkShape:
    """JSON of a chunk's choice around its text, by endpoint."""

    object: str
    before_text: bytes
    after_text: bytes
    without_text: bytes
    opening: bytes | None  # sent before the first text of every choice


CHAT = ChunkShape(
    object="chat.completion.chunk",
    before_text=b'"delta":{"content":',
    after_text=b"}",
    without_text=b'"delta":{}',
    opening=b'"delta":{"role":"assistant","content":""}',
)
COMPLETION = ChunkShape(
    object="text_completion", before_text=b'"text":', after_text=b"", without_text=b'"text":""', opening=None
)

_NOT_ENDED = b',"logprobs":null,"finish_reason":null'


class ChunkWriter:
    """Writes one stream: opening, then a write per output, then ending."""

    def __init__(self, settings: ResponseSettings, shape: ChunkShape) -> None:
        self._settings = settings
        self._shape = shape
        self._usage = UsageCounter(settings)
        fields: dict[str, Any] = {
            "id": settings.id,
            "object": shape.object,
            "created": settings.created,
            "model": settings.model,
        }
        if settings.has_service_tier and shape is CHAT:
            fields["service_tier"] = SERVICE_TIER
        self._head = b"data: " + _encode(fields)[:-1]
        self._choice_heads = [self._head + _choice(index) for index in settings.choices]
        self._unended_usage = b"}]" + (b',"usage":null}' if settings.with_usage else b"}") + b"\n\n"
        self._has_sent_prompt = [shape.opening is not None] * len(settings.prompts)  # a chat's opening has it
        self._unechoed = set() if settings.echoed_texts is None else set(range(len(settings.prompts)))
        self._completion_logprobs: dict[int, CompletionLogprobs] = {}
        self._answers = [settings.new_answer() for _ in settings.choices] if shape is CHAT else []

    @property
    def has_slow_opening(self) -> bool:
        """Whether the opening takes milliseconds to encode."""
        return self._shape.opening is not None and self._settings.repeats_much

    @property
    def is_slow(self) -> bool:
        """Whether prompts are still to be repeated that take milliseconds to encode."""
        waits = bool(self._unechoed) or (self._settings.with_token_ids and not all(self._has_sent_prompt))
        return waits and self._settings.repeats_much

    def opening(self) -> bytes:
        """Introduce every choice."""
        opening = self._shape.opening
        if opening is None:
            return b""
        prompt_ids = b""
        if self._settings.with_token_ids:
            prompt_ids = b',"prompt_token_ids":' + _encode(self._settings.prompts[0])
        head, ending = self._head + prompt_ids, opening + _NOT_ENDED + self._close()
        return b"".join(head + _choice(index) + ending for index in self._settings.choices)

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        self._usage.add(prompt_output)
        pieces: list[bytes] = []
        if self._unechoed and prompt_output.prompt in self._unechoed:
            for completion in prompt_output.output.outputs:
                check_ended_well(completion)  # a failed choice may have kept the prompt from being scored
            pieces += self._echo(prompt_output.prompt, prompt_output.output.prompt_logprobs)
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
            index = prompt_output.prompt * self._settings.num_choices + completion.index
            deltas = self._answers[index].add(completion) if self._answers else (TextDelta(completion.text),)
            pieces += self._delta_chunks(index, completion, deltas)
            if completion.finish_reason is not None:
                self._usage.finish(index)
                pieces += self._end_chunk(index, completion)
        return b"".join(pieces)

    def ending(self) -> bytes:
        """Encode the usage if it was asked for, and the end; raises RequestFailed when choices have not ended."""
        self._usage.check_is_complete()
        if not self._settings.with_usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + _encode(self._usage.usage(self._answers)) + b"}\n\n" + DONE

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream, and the end."""
        return event(error_body(error)) + DONE

    def _delta_chunks(self, index: int, completion: CompletionOutput, deltas: Sequence[ChatDelta]) -> Iterator[bytes]:
        """Encode an output's deltas in order; log probabilities and token ids travel with the first text."""
        has_text = any(isinstance(delta, TextDelta) and delta.text for delta in deltas)
        is_first = has_text
        if not has_text and (completion.logprobs or (self._settings.with_token_ids and completion.token_ids)):
            yield from self._text_chunk(index, completion, "")
        for delta in deltas:
            if not isinstance(delta, TextDelta):
                yield from self._chunk_of(index, delta)
            elif is_first and delta.text:
                yield from self._text_chunk(index, completion, delta.text)
                is_first = False
            elif delta.text:
                yield from self._chunk(index, delta.text, _NOT_ENDED, b"")

    def _chunk_of(self, index: int, delta: ReasoningDelta | ToolCallDelta) -> tuple[bytes, ...]:
        fields: dict[str, Any] = (
            {"tool_calls": [tool_call_delta(delta)]}
            if isinstance(delta, ToolCallDelta)
            else {"reasoning_content": delta.text, "reasoning": delta.text}
        )
        return self._choice_heads[index], b'"delta":', _encode(fields), _NOT_ENDED, self._close()

    def _text_chunk(self, index: int, completion: CompletionOutput, text: str) -> tuple[bytes, ...]:
        logprobs = _NOT_ENDED
        if completion.logprobs is not None:
            logprobs = self._logprobs(index, completion.token_ids, completion.logprobs)
        return self._chunk(index, text, logprobs, self._token_ids(index, completion))

    def _chunk(self, index: int, text: str, logprobs: bytes, token_ids: bytes) -> tuple[bytes, ...]:
        return (
            self._choice_heads[index],
            self._shape.before_text,
            encode_basestring(text).encode(errors="replace"),
            self._shape.after_text,
            logprobs,
            token_ids,
            self._close(),
        )

    def _echo(self, prompt: int, logprobs_by_position: PositionLogprobs | None) -> list[bytes]:
        """Begin every choice of a prompt with the prompt itself."""
        assert self._settings.echoed_texts is not None
        self._unechoed.discard(prompt)
        pieces: list[bytes] = []
        for index in range(prompt * self._settings.num_choices, (prompt + 1) * self._settings.num_choices):
            logprobs = _NOT_ENDED
            if self._settings.logprobs is not None:
                if logprobs_by_position is None:
                    raise RequestFailed(f"the first output brought no log probabilities of prompt {prompt}")
                logprobs = self._logprobs(index, self._settings.prompts[prompt], logprobs_by_position)
            pieces += self._chunk(index, self._settings.echoed_texts[prompt], logprobs, b"")
        return pieces

    def _logprobs(self, index: int, token_ids: Sequence[int], logprobs_by_position: PositionLogprobs) -> bytes:
        formatter = self._settings.logprobs
        if formatter is None:
            return _NOT_ENDED
        if self._shape is CHAT:
            entries: dict[str, Any] = formatter.chat(token_ids, logprobs_by_position)
        else:
            if index not in self._completion_logprobs:
                self._completion_logprobs[index] = self._settings.completion_logprobs(index, formatter)
            entries = self._completion_logprobs[index].format(token_ids, logprobs_by_position)
        return b',"logprobs":' + _encode(entries) + b',"finish_reason":null'

    def _end_chunk(self, index: int, completion: CompletionOutput) -> tuple[bytes, ...]:
        reason = self._answers[index].finish_reason if self._answers else completion.finish_reason
        reasons = {"finish_reason": reason, "stop_reason": completion.stop_reason}
        return (
            self._choice_heads[index],
            self._shape.without_text,
            b',"logprobs":null,',
            _encode(reasons)[1:-1],
            self._close(),
        )

    def _token_ids(self, index: int, completion: CompletionOutput) -> bytes:
        if not self._settings.with_token_ids:
            return b""
        token_ids = b',"token_ids":' + _encode(completion.token_ids)
        prompt = index // self._settings.num_choices
        if self._has_sent_prompt[prompt]:
            return token_ids
        self._has_sent_prompt[prompt] = True
        return token_ids + b',"prompt_token_ids":' + _encode(self._settings.prompts[prompt])

    def _close(self) -> bytes:
        if not self._settings.with_usage_in_every_chunk:
            return self._unended_usage
        return b'}],"usage":' + _encode(self._usage.usage(self._answers)) + b"}\n\n"


def tool_call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    """Return a piece of a tool call in OpenAI's form: its id, type and name come once."""
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def _choice(index: int) -> bytes:
    return b',"choices":[{"index":%d,' % index


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
