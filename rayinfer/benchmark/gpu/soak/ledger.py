"""Record of the requests of a soak test: a lost request, or an output of a wrong length, is a problem."""

import math
from collections import Counter
from dataclasses import dataclass

from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest

MAX_PROBLEMS = 50


@dataclass(slots=True)
class _Open:
    """An unfinished request."""

    request: GenerationRequest
    num_tokens: int = 0
    last_token: int = -1
    has_prompt_logprobs: bool = False


class Ledger:
    """Records of all requests that an engine has accepted."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._open: dict[str, _Open] = {}
        self.num_submitted = 0
        self.num_refused = 0
        self.num_output_tokens = 0
        self.finished: Counter[str] = Counter()  # by finish reason
        self.problems: list[str] = []

    @property
    def open_ids(self) -> list[str]:
        """Return the ids of unfinished requests."""
        return list(self._open)

    def submit(self, request: GenerationRequest) -> None:
        """Record a request that the engine has accepted."""
        self.num_submitted += 1
        self._open[request.request_id] = _Open(request)

    def abort(self, request_id: str, delta: TokenDelta | None) -> None:
        """Record the engine's result of an abort; the request may have ended by itself, not yet reported."""
        if delta is None or delta.finish_reason is None:
            self.report(f"{request_id}: aborted, and the engine returned {delta}")
        self._end(request_id, "abort" if delta is None else delta.finish_reason or "abort")

    def apply(self, delta: TokenDelta) -> None:
        """Record and check a step's output of one request."""
        state = self._open.get(delta.request_id)
        if state is None:
            self.report(f"{delta.request_id}: {len(delta.token_ids)} tokens for a finished request")
            return
        params = state.request.sampling_params
        if delta.token_ids and delta.start_pos != state.num_tokens:
            self.report(f"{delta.request_id}: token {delta.start_pos} follows {state.num_tokens} tokens")
        if not all(0 <= token_id < self._vocab_size for token_id in delta.token_ids):
            self.report(f"{delta.request_id}: tokens {delta.token_ids} are not in the vocabulary")
        if params.logprobs is not None:
            self._check_logprobs(delta, params.logprobs)
        if delta.prompt_logprobs is not None:
            state.has_prompt_logprobs = True
            if len(delta.prompt_logprobs) != len(state.request.prompt_token_ids):
                self.report(f"{delta.request_id}: {len(delta.prompt_logprobs)} positions of the prompt have logprobs")
        state.num_tokens += len(delta.token_ids)
        state.last_token = delta.token_ids[-1] if delta.token_ids else state.last_token
        self.num_output_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._check_end(state, delta.finish_reason)
            self._end(delta.request_id, delta.finish_reason)

    def report(self, problem: str) -> None:
        """Record a problem, up to a limit."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def _end(self, request_id: str, reason: str) -> None:
        del self._open[request_id]
        self.finished[reason] += 1

    def _check_logprobs(self, delta: TokenDelta, count: int) -> None:
        positions = delta.logprobs or []
        if len(positions) != len(delta.token_ids):
            self.report(f"{delta.request_id}: {len(positions)} log probabilities for {len(delta.token_ids)} tokens")
            return
        for token_id, position in zip(delta.token_ids, positions, strict=True):
            is_whole = token_id in position and count <= len(position) <= count + 1
            if not is_whole or any(math.isnan(each.logprob) or each.logprob > 1e-3 for each in position.values()):
                self.report(f"{delta.request_id}: log probabilities {position} of token {token_id}")

    def _check_end(self, state: _Open, reason: str) -> None:
        request, params = state.request, state.request.sampling_params
        stops = set(params.stop_ids) | (set() if params.ignore_eos else set(self._eos_token_ids))
        is_right = {
            "length": state.num_tokens == params.max_tokens,
            "stop": state.last_token in stops and state.num_tokens >= params.min_tokens,
            "timeout": request.timeout_s is not None,
        }.get(reason, False)
        if not is_right:
            self.report(f"{request.request_id}: ended with {reason!r} after {state.num_tokens} tokens of {params}")
        if reason != "timeout" and params.prompt_logprobs is not None and not state.has_prompt_logprobs:
            self.report(f"{request.request_id}: ended without the log probabilities of its prompt")
