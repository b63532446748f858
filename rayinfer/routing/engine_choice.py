"""Choice of the engine for a request, and the check of its credits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rayinfer.kv_cache.adapter_id import digest_in
from rayinfer.outputs import Credits
from rayinfer.protocols import GenerationRequest

EXPECTED_OUTPUT_TOKENS = 256  # assumed for a request without max_tokens
DECODING_WEIGHT = 0.1  # delay by a token in flight, relative to a prompt token to be computed
WORTH_OF_STORED = 0.9  # of a cached token: the disk is a seventh of the time to compute it, shared memory a fiftieth
MAX_IMBALANCE = 2.0  # a cached prefix does not attract requests to an engine with more than so many times the fewest
MAX_EXTRA_REQUESTS = 2  # ... and so many requests more
# Prompt tokens whose time it takes to read an adapter, and what that evicts: such an engine is passed over for one that
# has it in memory, within the limits of a cached prefix.
ADAPTER_LOAD_TOKENS = 256


class RequestCost(NamedTuple):
    """Cost of one request, or of several together, for an engine."""

    priority: int
    num_requests: int
    num_tokens: int  # prompts and expected outputs: what they will hold in the cache
    num_prefill_tokens: int  # of prompts, computed before the first token
    adapter: str | None = None  # the digest of its adapter


@dataclass(slots=True)
class EngineLoad:
    """This router's load on one engine, by priority."""

    num_requests: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0  # of requests that have no token yet
    last_chosen: int = 0  # ordinal of the latest request routed to it
    _levels: dict[int, list[int]] = field(default_factory=dict)  # the same three by priority

    def add(self, cost: RequestCost) -> None:
        """Add requests."""
        self._count(cost.priority, cost.num_requests, cost.num_tokens, cost.num_prefill_tokens)

    def prefilled(self, cost: RequestCost) -> None:
        """Record that the first token has arrived."""
        self._count(cost.priority, 0, 0, -cost.num_prefill_tokens)

    def remove(self, cost: RequestCost, *, is_prefilled: bool) -> None:
        """Remove requests."""
        prefill = 0 if is_prefilled else cost.num_prefill_tokens
        self._count(cost.priority, -cost.num_requests, -cost.num_tokens, -prefill)

    def is_full(self, priority: int, credits: Credits) -> bool:
        """Whether no request of this priority fits, however small; cheaper than `has_credits`."""
        granted = credits.num_requests
        if not granted or self.num_requests < granted:
            return False
        if self.num_requests >= 2 * granted:
            return True
        num_requests = 0
        for level_priority, level in self._levels.items():
            if level_priority <= priority:
                num_requests += level[0]
        return 0 < num_requests >= granted

    def has_credits(self, cost: RequestCost, credits: Credits) -> bool:
        """Whether the credits suffice for a request now: lower priorities do not count, as the engine runs them later.

        A request that costs more than half of the credits fits where half of them is left: neither it nor those
        behind it wait for an empty engine.
        """
        if not self.num_requests:
            return True
        num_requests = num_tokens = num_prefill_tokens = 0
        for priority, level in self._levels.items():
            if priority <= cost.priority:
                num_requests += level[0]
                num_tokens += level[1]
                num_prefill_tokens += level[2]
        wanted = _half_at_most(cost.num_requests, credits.num_requests)
        if not _fits(self.num_requests + wanted, 2 * credits.num_requests):
            return False  # the bound for any priority
        return not num_requests or (
            _fits(num_requests + wanted, credits.num_requests)
            and _fits(num_tokens + _half_at_most(cost.num_tokens, credits.num_tokens), credits.num_tokens)
            and _fits(num_prefill_tokens + 1, credits.num_prefill_tokens)
        )

    def _count(self, priority: int, num_requests: int, num_tokens: int, num_prefill_tokens: int) -> None:
        self.num_requests += num_requests
        self.num_tokens += num_tokens
        self.num_prefill_tokens += num_prefill_tokens
        level = self._levels.setdefault(priority, [0, 0, 0])
        level[0] += num_requests
        level[1] += num_tokens
        level[2] += num_prefill_tokens
        if not level[0]:
            del self._levels[priority]


class Candidate(NamedTuple):
    """A candidate engine for a request."""

    name: str
    load: EngineLoad
    num_cached_tokens: int  # of the request's prompt; of those in the machine's store a part
    num_cached_blocks: int  # of all requests
    has_adapter: bool = True  # in memory, if the request has one


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Choose the engine that will have computed the prompt first.

    That is the one with the fewest uncached prompt tokens to compute, this request's included; tokens in flight count
    a little, and an adapter to be read as some prompt tokens. Neither a prefix, however long, nor an adapter attracts
    requests to an engine that has many more of them than another. Ties go to the emptier cache, then to the engine
    chosen least recently.
    """
    if len(candidates) == 1:
        return candidates[0]
    fewest = min(candidate.load.num_requests for candidate in candidates)
    most = MAX_IMBALANCE * fewest + MAX_EXTRA_REQUESTS
    return min((it for it in candidates if it.load.num_requests <= most), key=_delay)


def _delay(candidate: Candidate) -> tuple[float, int, int]:
    load = candidate.load
    cost = load.num_prefill_tokens + DECODING_WEIGHT * load.num_tokens - candidate.num_cached_tokens
    cost += 0 if candidate.has_adapter else ADAPTER_LOAD_TOKENS
    return (cost, candidate.num_cached_blocks, load.last_chosen)


def less_cached(cost: RequestCost, num_cached_tokens: int) -> RequestCost:
    """Return the cost of a request of whose prompt so many tokens are cached."""
    if not num_cached_tokens:
        return cost
    return cost._replace(
        num_tokens=cost.num_tokens - num_cached_tokens, num_prefill_tokens=cost.num_prefill_tokens - num_cached_tokens
    )


def reason_of(chosen: Candidate, candidates: Sequence[Candidate]) -> str:
    """Return why an engine was chosen: only, prefix or load."""
    if len(candidates) == 1:
        return "only"
    cached = [candidate.num_cached_tokens for candidate in candidates]
    return "prefix" if min(cached) < max(cached) == chosen.num_cached_tokens else "load"


def cost_of(request: GenerationRequest) -> RequestCost:
    """Estimate the cost of a client's request, with all its choices."""
    num_prompt, choices = request.num_input_tokens, request.sampling_params.n
    return RequestCost(
        request.priority,
        choices,
        num_prompt + choices * _expected_output(request),
        num_prompt + len(request.output_token_ids),
        None if request.adapter is None else digest_in(request.adapter),
    )


def cost_of_choice(request: GenerationRequest, *, num_cached_tokens: int | None) -> RequestCost:
    """Estimate the cost of one choice; None stands for one whose prompt another choice computes."""
    num_prompt = 0 if num_cached_tokens is None else request.num_input_tokens - num_cached_tokens
    num_outputs = len(request.output_token_ids)
    num_held = num_prompt + max(_expected_output(request), num_outputs)
    return RequestCost(request.priority, 1, num_held, max(0, num_prompt + num_outputs))


def _expected_output(request: GenerationRequest) -> int:
    if request.prediction is not None:
        return 0
    max_tokens = request.sampling_params.max_tokens
    return EXPECTED_OUTPUT_TOKENS if max_tokens is None else min(max_tokens, EXPECTED_OUTPUT_TOKENS)


def _half_at_most(wanted: int, granted: int) -> int:
    return min(wanted, max(1, granted // 2))


def _fits(wanted: int, granted: int) -> bool:
    return not granted or wanted <= granted
