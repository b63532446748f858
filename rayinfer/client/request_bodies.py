"""Bodies of requests to OpenAI's paths, and outputs made of the responses."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.sampling_params import SamplingParams

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ALL_TOKENS = 2**31 - 1  # more than any context has; the service generates what its context leaves

# A text, token ids, or the messages of a conversation.
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]

_NOT_SENT = ("bad_token_sequences", "logprobs", "prompt_logprobs")


class RequestOptions(TypedDict, total=False):
    """Options of a request beside its sampling parameters."""

    model: str  # may be left out where the service has one
    priority: int  # lower goes first, -10 to 10
    request_id: str  # its name in logs and traces
    cache_salt: str  # requests with different salts share no cached prefix


def path_and_body(
    prompt: Prompt, params: SamplingParams | None, options: RequestOptions, *, stream: bool
) -> tuple[str, dict[str, Any]]:
    """Write a request for text; raises InvalidParameter for what cannot be sent."""
    is_chat = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    body: dict[str, Any] = {"messages" if is_chat else "prompt": prompt if isinstance(prompt, str) else list(prompt)}
    if params is not None:
        body |= _sampling_fields(params, is_chat=is_chat)
    body |= {name: value for name, value in options.items() if value is not None}
    body |= {"stream": stream, "return_token_ids": True}
    if stream:
        body["stream_options"] = {"include_usage": True}
    return CHAT if is_chat else COMPLETIONS, body


def _sampling_fields(params: SamplingParams, *, is_chat: bool) -> dict[str, Any]:
    """Write all parameters, so that no default of the model takes their place."""
    for name in _NOT_SENT:
        if getattr(params, name) not in (None, ()):
            raise InvalidParameter(f"{name} is not supported by this client", name)
    sent = {field.name: getattr(params, field.name) for field in fields(params) if field.name not in _NOT_SENT}
    sent = {name: list(value) if isinstance(value, tuple) else value for name, value in sent.items()}
    if params.logit_bias is not None:
        sent["logit_bias"] = {str(token_id): bias for token_id, bias in params.biases}
    if params.max_tokens is None and not is_chat:
        sent["max_tokens"] = ALL_TOKENS
    return {name: value for name, value in sent.items() if value not in (None, [])}


class OutputReader:
    """Reader of a response's JSON: of a whole one, or of a stream's chunks in their order."""

    def __init__(self, num_choices: int) -> None:
        self._unfinished = set(range(num_choices))
        self._prompt_token_ids: list[int] = []
        self._num_cached_tokens = 0

    @property
    def is_finished(self) -> bool:
        """Whether all choices have ended."""
        return not self._unfinished

    def read(self, body: Mapping[str, Any]) -> RequestOutput:
        """Make an output of a body or chunk; raises RequestFailed where it is none."""
        try:
            return self._read(body)
        except (KeyError, TypeError, AttributeError) as error:
            raise RequestFailed(f"the response is not one of a service: {type(error).__name__}: {error}") from error

    def _read(self, body: Mapping[str, Any]) -> RequestOutput:
        outputs = []
        self._prompt_token_ids = body.get("prompt_token_ids") or self._prompt_token_ids
        for choice in body["choices"]:
            self._prompt_token_ids = choice.get("prompt_token_ids") or self._prompt_token_ids
            output = _completion(choice)
            outputs.append(output)
            if output.finish_reason is not None:
                self._unfinished.discard(output.index)
        details = (body.get("usage") or {}).get("prompt_tokens_details") or {}
        self._num_cached_tokens = details.get("cached_tokens", self._num_cached_tokens)
        return RequestOutput(
            request_id=body["id"],
            prompt_token_ids=self._prompt_token_ids,
            outputs=outputs,
            num_cached_tokens=self._num_cached_tokens,
            finished=self.is_finished,
        )


def _completion(choice: Mapping[str, Any]) -> CompletionOutput:
    message = choice.get("message") or choice.get("delta") or {}
    return CompletionOutput(
        index=choice["index"],
        text=choice.get("text") or message.get("content") or "",
        token_ids=choice.get("token_ids") or [],
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
    )
