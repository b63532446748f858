"""Answers of the Responses API: the response object, and the events of a stream."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from rayinfer.servers.error_responses import public_error
from rayinfer.servers.generation.chat import FastEncoding, SingleAnswer
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.openai.logprobs_formatter import LogprobsFormatter
from rayinfer.servers.openai.responses.output import Event, ResponseOutput
from rayinfer.servers.openai.responses.requests import ResponsesRequest
from rayinfer.servers.openai.responses.store import StoredResponse

_ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id"),
    *("safety_identifier", "prompt_cache_key", "user"),
)

Save = Callable[[StoredResponse], object]


class ResponseAnswer:
    """The collector of a whole response, which is saved when it is complete."""

    def __init__(self, request: ResponsesRequest, response_id: str, save: Save) -> None:
        self._request = request
        self._id = response_id
        self._save = save
        self._single = SingleAnswer(request.chat)
        self._created_s = int(time.time())
        params = request.chat.params
        tokenizer = request.chat.request.model.tokenizer
        self._logprobs = (
            None if params.logprobs is None else LogprobsFormatter(tokenizer=tokenizer, num_top=params.logprobs)
        )
        self.output = ResponseOutput()

    @property
    def is_long(self) -> bool:
        """Whether it takes so long to encode that other requests should not wait for it: it never does."""
        return False

    def add(self, prompt_output: PromptOutput) -> list[Event]:
        """Add an output and return its events; raises the error of a failed choice."""
        (completion,) = prompt_output.output.outputs
        if self._logprobs is not None and completion.logprobs is not None:
            self.output.add_logprobs(self._logprobs.chat(completion.token_ids, completion.logprobs)["content"])
        return [event for delta in self._single.add(prompt_output) for event in self.output.add(delta)]

    def body(self) -> dict[str, Any]:
        """Complete the response, save it and return it; raises RequestFailed when it has not ended."""
        for _ in self.end():
            pass
        return self.complete()

    def end(self) -> Iterator[Event]:
        """Yield the events that end the last item; raises RequestFailed when the answer has not ended."""
        self._single.check_is_complete()
        yield from self.output.end(self._status())

    def complete(self) -> dict[str, Any]:
        """Save the response if that is wanted, and return it."""
        status, answer = self._status(), self._single.answer
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        more = {"completed_at": int(time.time()), "incomplete_details": details, "usage": self._usage()}
        body = self.response(status, **more)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.tool_calls
            ]
        self.save(body, message)
        return body

    def save(self, body: dict[str, Any], *answers: dict[str, Any]) -> None:
        """Save the response as it is now, if that is wanted."""
        if self._request.is_stored:
            messages = [*self._request.messages, *answers]
            self._save(StoredResponse(body=body, input=self._request.items, messages=messages))

    def failed(self, error: BaseException) -> dict[str, Any]:
        """Save a response that failed, and return it."""
        public = public_error(error)
        body = self.response("failed", error={"code": public.code or "server_error", "message": public.message})
        self.save(body)
        return body

    def response(self, status: str, **fields: Any) -> dict[str, Any]:
        """Return the response object with this status."""
        body = self._request.body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._request.chat.request.model.name,
            "output": list(self.output.items),
            "usage": None,
            **{name: getattr(body, name) for name in _ECHOED},
            **self._settings(),
            **fields,
        }

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the response, with their defaults."""
        body, params = self._request.body, self._request.chat.request.params
        effort = None if body.reasoning is None else body.reasoning.effort
        return {
            "background": bool(body.background),
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": effort, "summary": None},
            "service_tier": "default",
            "store": self._request.is_stored,
            "temperature": params.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
        }

    def _status(self) -> str:
        return "incomplete" if self._single.answer.finish_reason == "length" else "completed"

    def _usage(self) -> dict[str, Any]:
        single, answer = self._single, self._single.answer
        return {
            "input_tokens": single.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": single.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.num_tokens,
            "output_tokens_details": {"reasoning_tokens": answer.num_reasoning_tokens or 0},
            "total_tokens": single.num_prompt_tokens + answer.num_tokens,
        }


class ResponseEvents(FastEncoding):
    """The writer of a streamed response; its events are numbered."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._num_events = 0

    def opening(self) -> bytes:
        """Encode the events that precede the first output."""
        response = self._answer.response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._encode({"type": kind, "response": response}) for kind in kinds)

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        return b"".join(map(self._encode, self._answer.add(prompt_output)))

    def ending(self) -> bytes:
        """Encode the end; raises RequestFailed when the answer has not ended."""
        pieces = [self._encode(event) for event in self._answer.end()]
        response = self._answer.complete()
        return b"".join([*pieces, self._encode({"type": f"response.{response['status']}", "response": response})])

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream after its first output."""
        return self._encode({"type": "response.failed", "response": self._answer.failed(error)})

    def _encode(self, event: Event) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._num_events, **event}
        self._num_events += 1
        encoded = json.dumps(numbered, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encoded)
