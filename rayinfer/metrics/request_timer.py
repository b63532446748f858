"""Counters of a model's requests, and the timer of each choice that fills them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from rayinfer.metrics.adapter_counts import AdapterCounts
from rayinfer.metrics.histogram import (
    CHOICES,
    FIRST_TOKEN_S,
    INTER_TOKEN_S,
    MIGRATION_S,
    REQUEST_S,
    TGI_S,
    TOKENS,
    Histogram,
)
from rayinfer.metrics.tenant_counts import TenantCounts
from rayinfer.outputs import FinishReason


@dataclass(slots=True)
class ModelCounts:
    """Everything that one router counted for one model since it started."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    num_queued: int = 0
    queued_by: dict[tuple[str, int], int] = field(default_factory=dict)  # the same by tenant and priority
    migrations: int = 0
    handovers: int = 0
    advised_prefill_engines: int | None = None  # None while nothing is known
    engines_lost: int = 0
    rejected: dict[str, int] = field(default_factory=dict)  # by reason
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))
    first_token: Histogram = field(default_factory=partial(Histogram, FIRST_TOKEN_S))
    inter_token: Histogram = field(default_factory=partial(Histogram, INTER_TOKEN_S))
    time_per_token: Histogram = field(default_factory=partial(Histogram, INTER_TOKEN_S))  # mean of each choice
    migration: Histogram = field(default_factory=partial(Histogram, MIGRATION_S))
    end_to_end: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    queue: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    prefill: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    decode: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    inference: Histogram = field(default_factory=partial(Histogram, REQUEST_S))
    request_prompt_tokens: Histogram = field(default_factory=partial(Histogram, TOKENS))
    computed_prompt_tokens: Histogram = field(default_factory=partial(Histogram, TOKENS))
    request_generation_tokens: Histogram = field(default_factory=partial(Histogram, TOKENS))
    longest_generation_tokens: Histogram = field(default_factory=partial(Histogram, TOKENS))  # of a request's choices
    params_max_tokens: Histogram = field(default_factory=partial(Histogram, TOKENS))
    params_n: Histogram = field(default_factory=partial(Histogram, CHOICES))
    tgi_request: Histogram = field(default_factory=partial(Histogram, TGI_S))
    tgi_queue: Histogram = field(default_factory=partial(Histogram, TGI_S))
    tgi_inference: Histogram = field(default_factory=partial(Histogram, TGI_S))
    tgi_time_per_token: Histogram = field(default_factory=partial(Histogram, TGI_S))


class RequestTimer:
    """Timer of one choice of a request, from its arrival to its end; only the first counts what the choices share."""

    __slots__ = (
        "_adapter",
        "_clock",
        "_counts",
        "_dispatched_s",
        "_first_token_s",
        "_has_moved",
        "_last_token_s",
        "_num_prompt_tokens",
        "_started_s",
        "_tenant",
        "num_tokens",
    )

    def __init__(
        self,
        counts: ModelCounts,
        tenant: TenantCounts,
        num_prompt_tokens: int,
        clock: Callable[[], float],
        adapter: AdapterCounts | None = None,
    ) -> None:
        self.num_tokens = 0  # generated so far
        self._counts = counts
        self._tenant = tenant
        self._adapter = adapter
        self._num_prompt_tokens = num_prompt_tokens  # 0 for all choices but the first
        self._clock = clock
        self._started_s = clock()
        self._dispatched_s: float | None = None
        self._first_token_s = 0.0
        self._last_token_s: float | None = None
        self._has_moved = False

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the arrival to the first token; None before it."""
        return None if self._last_token_s is None else self._first_token_s - self._started_s

    def record_engine_change(self) -> None:
        """Record that the next token comes from another engine than the earlier ones, if any."""
        self._has_moved = self._last_token_s is not None

    def record_dispatch(self) -> None:
        """Record that an engine has accepted the request; later attempts count as its inference."""
        if self._dispatched_s is None:
            self._dispatched_s = self._clock()

    def tokens(self, count: int, num_cached_tokens: int = 0) -> None:
        """Record `count` new tokens that arrived together; the prompt counts as computed with the first of them."""
        if count <= 0:
            return
        now_s, counts = self._clock(), self._counts
        counts.generation_tokens += count
        self._tenant.generation_tokens += count
        self.num_tokens += count
        if self._last_token_s is None:
            self._first_token_s = now_s
            self._count_prompt(num_cached_tokens)
            counts.first_token.observe(now_s - self._started_s)
            if count > 1:
                counts.inter_token.observe(0.0, count - 1)
        else:
            counts.inter_token.observe((now_s - self._last_token_s) / count, count)
            if self._has_moved:
                counts.migration.observe(now_s - self._last_token_s)
                self._has_moved = False
        self._last_token_s = now_s

    def prediction(self, num_cached_tokens: int = 0) -> None:
        """Record the output of a model that generates nothing; its input counts as computed with it."""
        self._last_token_s = self._first_token_s = self._clock()
        self._count_prompt(num_cached_tokens)
        self._counts.first_token.observe(self._first_token_s - self._started_s)

    def finished(self, reason: FinishReason) -> None:
        """Record the choice's end; call it once."""
        counts, now_s = self._counts, self._clock()
        counts.finished[reason] += 1
        self._tenant.finished[reason] += 1
        if self._adapter is not None:
            self._adapter.finished[reason] += 1
        counts.end_to_end.observe(now_s - self._started_s)
        counts.tgi_request.observe(now_s - self._started_s)
        counts.request_generation_tokens.observe(self.num_tokens)
        if self._dispatched_s is None:
            return
        self._tenant.queue_s += self._dispatched_s - self._started_s
        for queue in (counts.queue, counts.tgi_queue):
            queue.observe(self._dispatched_s - self._started_s)
        if self._last_token_s is not None:
            self._count_inference(self._dispatched_s, self._last_token_s)

    def _count_prompt(self, num_cached_tokens: int) -> None:
        if self._num_prompt_tokens:
            counts = self._counts
            counts.prompt_tokens += self._num_prompt_tokens
            self._tenant.prompt_tokens += self._num_prompt_tokens
            counts.cached_prompt_tokens += num_cached_tokens
            counts.request_prompt_tokens.observe(self._num_prompt_tokens)
            counts.computed_prompt_tokens.observe(self._num_prompt_tokens - num_cached_tokens)

    def _count_inference(self, dispatched_s: float, last_token_s: float) -> None:
        counts, decode_s = self._counts, last_token_s - self._first_token_s
        counts.prefill.observe(self._first_token_s - dispatched_s)
        for inference in (counts.inference, counts.tgi_inference):
            inference.observe(last_token_s - dispatched_s)
        if not self.num_tokens:
            return
        counts.decode.observe(decode_s)
        counts.tgi_time_per_token.observe((last_token_s - dispatched_s) / self.num_tokens)
        if self.num_tokens > 1:
            counts.time_per_token.observe(decode_s / (self.num_tokens - 1))
