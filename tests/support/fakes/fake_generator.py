"""A TextGenerator that replays given texts, and remembers what was asked of it and how it was left."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayinfer.errors import NotReady, QueueFull
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import CompletionOutput, EngineStats, FinishReason, Logprob, RequestOutput, TokenLogprobs
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus


def scored(token_id: int, num_top: int, listed: Sequence[int] = ()) -> TokenLogprobs:
    """Make a place where this token is the second likeliest, after the next id and before those that follow.

    Listed tokens beside the likeliest have the log probability -100 - id.
    """
    likeliest = {token_id + 1: Logprob(-0.5, 1), token_id: Logprob(-1.0, 2)}
    likeliest |= {token_id + rank - 1: Logprob(-float(rank), rank) for rank in range(3, num_top + 1)}
    place = {token_id: likeliest[token_id]} | dict(list(likeliest.items())[:num_top])
    return place | {each: Logprob(-100.0 - each, None) for each in listed if each not in place}


@dataclass(kw_only=True)
class FakeGenerator:
    """Generator that answers every request with the same text; token ids count up from 10 within each choice.

    Piece k of every choice travels in output k; the last output carries the finish reason as well. Log probabilities
    are those of `scored`. A request for no tokens gets none.
    """

    pieces: Sequence[str] = ("Hello", " there", "!")
    finish_reason: FinishReason | None = "stop"
    stop_reason: int | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    refusal: Exception | None = None  # raised before the first output
    full: QueueFull | None = None  # why it takes no request at all
    failure: Exception | None = None  # raised after the first output
    scores_prompts: bool = True
    supports_structured_outputs: bool = False
    grammar_refusal: Exception | None = None  # raised by an engine that compiles grammars
    grammars: list[StructuredOutputsParams] = field(default_factory=list)  # that were to be compiled
    blocks_after: int | None = None  # outputs after which it waits for `release`
    not_ready: str = ""
    max_model_len: int = 256
    is_encoder_decoder: bool = False
    takes_images: bool = False
    vocab_size: int = 384
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    engines: dict[str, EngineStats] = field(default_factory=dict)
    requests: list[GenerationRequest] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)  # closed or cancelled before their end
    release: asyncio.Event = field(default_factory=asyncio.Event)
    has_blocked: asyncio.Event = field(default_factory=asyncio.Event)
    has_aborted: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Replay the pieces."""
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        try:
            if request.sampling_params.max_tokens == 0:
                yield self._scoring(request)
                return
            for position in range(len(self.pieces)):
                await self._wait_if_blocked(position)
                if position == 1 and self.failure is not None:
                    raise self.failure
                yield self._output(request, position)
            await self._wait_if_blocked(len(self.pieces))
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request.request_id)
            self.has_aborted.set()
            raise
        self.finished.append(request.request_id)

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        """Refuse a grammar, or leave it to the server."""
        self.grammars.append(spec)
        if self.grammar_refusal is not None:
            raise self.grammar_refusal
        return False

    def describe(self) -> ModelDescription:
        """Describe a small model."""
        if self.not_ready:
            raise NotReady(self.not_ready, retry_after_s=2.0)
        return ModelDescription(
            name="tiny",
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            created=1_700_000_000,
            default_sampling_params=self.default_sampling_params,
            scores_prompts=not self.is_encoder_decoder,
            supports_structured_outputs=self.supports_structured_outputs,
            takes_images=self.takes_images,
        )

    def status(self) -> ServiceStatus:
        """Return readiness as `not_ready` has it, and the engines."""
        return ServiceStatus(ready=not self.not_ready, reason=self.not_ready, engines=self.engines)

    def overload(self) -> QueueFull | None:
        """Say what `full` says."""
        return self.full

    async def _wait_if_blocked(self, num_outputs: int) -> None:
        if self.blocks_after == num_outputs:
            self.has_blocked.set()
            await self.release.wait()
        else:
            await asyncio.sleep(0)

    def _scoring(self, request: GenerationRequest) -> RequestOutput:
        choices = range(request.sampling_params.n)
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[CompletionOutput(index=i, text="", token_ids=[], finish_reason="length") for i in choices],
            finished=True,
            prompt_logprobs=self._prompt_logprobs(request),
        )

    def _prompt_logprobs(self, request: GenerationRequest) -> list[TokenLogprobs | None] | None:
        num_top = request.sampling_params.prompt_logprobs
        if num_top is None or not self.scores_prompts:
            return None
        num_top = num_top if num_top >= 0 else self.vocab_size
        return [None, *(scored(token_id, num_top) for token_id in request.prompt_token_ids[1:])]

    def _output(self, request: GenerationRequest, position: int) -> RequestOutput:
        is_last = position == len(self.pieces) - 1
        num_top, listed = request.sampling_params.logprobs, request.sampling_params.listed_ids
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[
                CompletionOutput(
                    index=choice,
                    text=self.pieces[position],
                    token_ids=[10 + position],
                    logprobs=None if num_top is None else [scored(10 + position, num_top, listed)],
                    finish_reason=self.finish_reason if is_last else None,
                    stop_reason=self.stop_reason if is_last else None,
                    error=self.error if is_last else None,
                )
                for choice in range(request.sampling_params.n)
            ],
            num_cached_tokens=self.num_cached_tokens,
            finished=is_last and self.finish_reason is not None,
            prompt_logprobs=self._prompt_logprobs(request) if position == 0 else None,
        )
