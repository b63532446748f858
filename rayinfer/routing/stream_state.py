"""State of one client request: turns engine tokens into text, and ends each choice exactly once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rayinfer.outputs import CompletionOutput, FinishReason, RequestOutput, TokenDelta, TokenLogprobs
from rayinfer.predictions import PredictionOutput
from rayinfer.protocols import EngineRequestId, GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.output_text import OutputText, TextDelta
from rayinfer.tokenization.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class _Choice:
    """One of the n choices so far."""

    index: int
    text: OutputText
    token_ids: list[int] = field(default_factory=list)
    waiting_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_delivered: int = 0  # tokens in outputs so far
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def take_output(self, text: str) -> CompletionOutput:
        """Make the output that delivers this text, with every token that has waited for it."""
        start, self.num_delivered = self.num_delivered, len(self.token_ids)
        logprobs, self.waiting_logprobs = self.waiting_logprobs, []
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[start:],
            logprobs=logprobs or None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )


class StreamState:
    """A router's or `LLM`'s state of one client request: n engine requests, their tokens so far and their texts.

    Tokens that are known already are dropped, so a stream can continue on another engine from `engine_requests()`.
    The choices share one prompt, so only the first one requests the prompt's log probabilities; there is no output
    before them.
    """

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        params = request.sampling_params
        self._request = request
        self._scoring_params = params if params.n == 1 else replace(params, n=1)
        self._awaits_prompt_logprobs = params.prompt_logprobs is not None
        self._engine_params = self._scoring_params
        if self._awaits_prompt_logprobs:
            self._engine_params = replace(self._scoring_params, prompt_logprobs=None)
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._held: dict[int, str] = {}  # texts that wait for the prompt's log probabilities, by choice
        self._special_ids = tokenizer.special_ids
        self._choices: list[_Choice] = []
        for index in range(params.n):
            text = _output_text(request, params, tokenizer)
            text.append(request.output_token_ids, is_last=False)  # delivered before
            choice = _Choice(index=index, text=text, token_ids=list(request.output_token_ids))
            choice.num_delivered = len(choice.token_ids)
            self._choices.append(choice)
        self._attempt = request.attempt
        self._choices_by_name: dict[str, _Choice] = {}  # by engine request id, as far as deltas have come
        self._num_open = params.n
        self._stopped: list[str] = []
        self._num_cached_tokens: int | None = None
        self._prediction: PredictionOutput | None = None

    @property
    def request(self) -> GenerationRequest:
        """The client request."""
        return self._request

    @property
    def request_id(self) -> str:
        """The id of the client request."""
        return self._request.request_id

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    @property
    def has_begun(self) -> bool:
        """Whether every choice has a token or has ended."""
        return all(choice.token_ids or choice.finish_reason is not None for choice in self._choices)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all choices, delivered or not."""
        return sum(len(choice.token_ids) for choice in self._choices)

    def num_tokens_of(self, choice: int) -> int:
        """Tokens of one choice, delivered or not."""
        return len(self._choices[choice].token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were cached before the request."""
        return self._num_cached_tokens or 0

    def engine_requests(self, *, attempt: int | None = None) -> list[GenerationRequest]:
        """Make the engine requests of the unfinished choices, each with its tokens so far.

        Another number begins another attempt, whose requests have ids of their own: deltas of earlier attempts are an
        error from now on.
        """
        if attempt is not None and attempt != self._attempt:
            self._attempt = attempt
            self._choices_by_name.clear()
        return [
            replace(
                self._request,
                request_id=str(EngineRequestId(self.request_id, choice.index, self._attempt)),
                output_token_ids=list(choice.token_ids),
                sampling_params=self._scoring_params if self._scores_prompt(choice) else self._engine_params,
                choice=choice.index if self._request.sampling_params.n > 1 else self._request.choice,
                attempt=self._attempt,
            )
            for choice in self._choices
            if choice.finish_reason is None
        ]

    def stopped_request_ids(self) -> list[str]:
        """Return, once each, the engine requests that ended here and must be aborted."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def apply_all(self, deltas: Sequence[TokenDelta]) -> RequestOutput | None:
        """Turn deltas into one output; None while they make no visible text."""
        merged: RequestOutput | None = None
        for delta in deltas:
            output = self.apply(delta)
            if output is None:
                continue
            if merged is None:
                merged = output
            else:
                merged.outputs.extend(output.outputs)
                merged.finished = output.finished
                merged.num_cached_tokens = output.num_cached_tokens
        return merged

    def apply(self, delta: TokenDelta) -> RequestOutput | None:
        """Apply an engine's delta of one choice; returns the output that it makes, if any."""
        choice = self._choices_by_name.get(delta.request_id) or self._choice_of(delta.request_id)
        if choice.finish_reason is not None:
            return None
        num_known = len(choice.token_ids) - delta.start_pos
        if num_known < 0 and delta.token_ids:
            raise RuntimeError(f"tokens lost: {delta.request_id!r} has {len(choice.token_ids)}, got {delta.start_pos}")
        if not choice.token_ids and delta.token_ids:
            self._note_cached_tokens(delta.num_cached_tokens)
        token_ids = delta.token_ids[num_known:] if num_known > 0 else delta.token_ids
        if delta.prediction is not None:
            self._prediction = delta.prediction
        new = self._add_text(choice, token_ids, delta)
        choice.token_ids += token_ids[: new.num_tokens]
        if delta.logprobs:
            choice.waiting_logprobs += delta.logprobs[max(num_known, 0) :][: new.num_tokens]
        if new.stop_string is not None:
            self._end(choice, "stop", new.stop_string)
            if delta.finish_reason is None:
                self._stopped.append(delta.request_id)
        elif delta.finish_reason is not None:
            choice.error = delta.error
            self._end(choice, delta.finish_reason, delta.stop_reason)
        if self._awaits_prompt_logprobs:
            return self._hold(choice, delta, new.text)
        if not new.text and choice.finish_reason is None:
            return None
        return self._output([choice.take_output(new.text)])

    def fail(self, finish_reason: FinishReason) -> RequestOutput:
        """End every unfinished choice; the output delivers the text that was held back."""
        for choice in self._choices:
            if choice.finish_reason is None:
                text = choice.text.append((), is_last=True).text
                self._end(choice, finish_reason, None)
                self._stopped.append(str(EngineRequestId(self.request_id, choice.index, self._attempt)))
                self._held[choice.index] = self._held.get(choice.index, "") + text
        return self._output(self._take_held())

    def _scores_prompt(self, choice: _Choice) -> bool:
        return self._awaits_prompt_logprobs and choice.index == 0

    def _choice_of(self, request_id: str) -> _Choice:
        name = EngineRequestId.parse(request_id)
        is_known = (name.request_id, name.attempt) == (self.request_id, self._attempt)
        if not is_known or not 0 <= name.choice < len(self._choices):
            raise RuntimeError(f"request {self.request_id!r} has no engine request {request_id!r}")
        choice = self._choices_by_name[request_id] = self._choices[name.choice]
        return choice

    def _hold(self, choice: _Choice, delta: TokenDelta, text: str) -> RequestOutput | None:
        """Hold a choice's text back until the prompt's log probabilities are there, or will never be."""
        self._held[choice.index] = self._held.get(choice.index, "") + text
        if delta.prompt_logprobs is None and self._choices[0].finish_reason is None:
            return None
        self._prompt_logprobs, self._awaits_prompt_logprobs = delta.prompt_logprobs, False
        output = self._output(self._take_held())
        output.prompt_logprobs = self._prompt_logprobs
        return output

    def _take_held(self) -> list[CompletionOutput]:
        held, self._held = self._held, {}
        return [choice.take_output(held[choice.index]) for choice in self._choices if choice.index in held]

    def _add_text(self, choice: _Choice, token_ids: Sequence[int], delta: TokenDelta) -> TextDelta:
        """Detokenize new tokens; the token that stopped the engine has no text unless `include_stop_str_in_output`."""
        is_last = delta.finish_reason is not None
        if not token_ids or not self._has_no_text(token_ids[-1], delta):
            return choice.text.append(token_ids, is_last=is_last)
        new = choice.text.append(token_ids[:-1], is_last=True)
        return new if new.stop_string is not None else new._replace(num_tokens=new.num_tokens + 1)

    def _has_no_text(self, last_token_id: int, delta: TokenDelta) -> bool:
        if delta.finish_reason != "stop" or self._engine_params.include_stop_str_in_output:
            return False
        return last_token_id == delta.stop_reason or (delta.stop_reason is None and last_token_id in self._special_ids)

    def _note_cached_tokens(self, num_cached_tokens: int) -> None:
        # The other choices find the blocks of the first one in the cache: only the least counts.
        if self._num_cached_tokens is None or num_cached_tokens < self._num_cached_tokens:
            self._num_cached_tokens = num_cached_tokens

    def _end(self, choice: _Choice, finish_reason: FinishReason, stop_reason: int | str | None) -> None:
        choice.finish_reason, choice.stop_reason = finish_reason, stop_reason
        self._num_open -= 1

    def _output(self, outputs: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(
            request_id=self._request.request_id,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=outputs,
            num_cached_tokens=self.num_cached_tokens,
            finished=self.is_finished,
            prediction=self._prediction,
        )


def _output_text(request: GenerationRequest, params: SamplingParams, tokenizer: Tokenizer) -> OutputText:
    return OutputText(
        tokenizer,
        request.prompt_token_ids if request.prediction is None else (),  # no text follows
        stop_strings=params.stop_strings,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        min_tokens=params.min_tokens,
    )
