"""Texts of a generation: collected for one answer, or written as a stream of events."""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.outputs import CompletionAggregate, CompletionOutput, TokenLogprobs
from rayinfer.servers.error_formats import kserve_error
from rayinfer.servers.error_responses import error_body
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.generation.server_sent_events import event
from rayinfer.servers.kserve.repository import VERSION
from rayinfer.servers.kserve.text_request import TextRequest
from rayinfer.tokenization.tokenizer import Tokenizer

MANY_TOKENS = 1000  # whose details take milliseconds to encode
LOWEST_LOGPROB = -9999.0  # JSON has no infinity


class TextCollector:
    """Collector of the whole texts of all prompts of a request."""

    def __init__(self, request: TextRequest) -> None:
        self._request = request
        self._choices = [CompletionAggregate() for _ in request.texts]

    @property
    def is_long(self) -> bool:
        """Whether the details take milliseconds to encode."""
        return self._request.details and sum(len(choice.token_ids) for choice in self._choices) > MANY_TOKENS

    def add(self, prompt_output: PromptOutput) -> None:
        """Add an output; raises the error of one that failed."""
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
            self._choices[prompt_output.prompt].add(completion)

    def texts(self) -> list[str]:
        """Return the texts; raises RequestFailed when one has not ended."""
        for index, choice in enumerate(self._choices):
            if choice.finish_reason is None:
                raise RequestFailed(f"the outputs ended before that of prompt {index}")
        inputs = self._request.texts if self._request.repeats_input else [""] * len(self._choices)
        return [text + "".join(choice.texts) for text, choice in zip(inputs, self._choices, strict=True)]

    def body(self) -> dict[str, Any]:
        """Return the body for generate."""
        model, choice = self._request.generation.model, self._choices[0]
        body: dict[str, Any] = {"id": self._request.id} if self._request.id else {}
        body |= {"model_name": model.name, "model_version": VERSION, "text_output": self.texts()[0]}
        if self._request.details:
            body["details"] = {
                "finish_reason": finish_reason(choice),
                "logprobs": _logged_tokens(choice.token_ids, choice.logprobs, model.tokenizer),
            }
        return body


class GenerateEvents:
    """Encoder of generate_stream: one event for each output, without a `[DONE]` at the end."""

    has_slow_opening = False
    is_slow = False

    def __init__(self, request: TextRequest) -> None:
        model = request.generation.model
        self._request = request
        self._has_ended = False
        self._opening = request.texts[0] if request.repeats_input else ""
        named = {"id": request.id} if request.id else {}
        named |= {"model_name": model.name, "model_version": VERSION}
        self._head = b"data: " + json.dumps(named, ensure_ascii=False).encode()[:-1] + b', "text_output": '

    def opening(self) -> bytes:
        """Encode nothing: the input, where it is repeated, is part of the first event."""
        return b""

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        return b"".join(self._event(completion) for completion in prompt_output.output.outputs)

    def ending(self) -> bytes:
        """Encode nothing; raises RequestFailed when the text has not ended."""
        if not self._has_ended:
            raise RequestFailed("the outputs ended before the text had")
        return b""

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream."""
        return event(error_body(error, kserve_error))

    def _event(self, completion: CompletionOutput) -> bytes:
        check_ended_well(completion)
        self._has_ended = completion.finish_reason is not None
        text, self._opening = self._opening + completion.text, ""
        if not (text or self._has_ended or (self._request.details and completion.token_ids)):
            return b""
        return self._head + encode_basestring(text).encode(errors="replace") + self._details(completion) + b"}\n\n"

    def _details(self, completion: CompletionOutput) -> bytes:
        if not self._request.details:
            return b""
        tokenizer = self._request.generation.model.tokenizer
        logged = _logged_tokens(completion.token_ids, completion.logprobs or (), tokenizer)
        details: dict[str, Any] = {"logprobs": logged}
        if completion.finish_reason is not None:
            details["finish_reason"] = finish_reason(completion)
        return b', "details": ' + json.dumps(details, ensure_ascii=False).encode(errors="replace")


def finish_reason(choice: CompletionAggregate | CompletionOutput) -> str:
    """Return the protocol's word for the end of a text."""
    if choice.finish_reason != "stop":
        return "length"
    return "eos_token" if choice.stop_reason is None else "stop_sequence"


def _logged_tokens(
    token_ids: Sequence[int], positions: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "text": tokenizer.token_text(token_id).text,
            "logprob": max(position[token_id].logprob, LOWEST_LOGPROB),
            "special": token_id in tokenizer.special_ids,
        }
        for token_id, position in zip(token_ids, positions, strict=True)
    ]
