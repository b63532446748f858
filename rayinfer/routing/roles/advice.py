"""Advice on roles of engines: what long prompts do to other requests, as measured, and whether roles would help."""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LONG_PROMPT_TOKENS = 1024  # to be computed
WINDOW_S = 300.0  # what counts is one to two windows old at most
_FEWEST_GAPS = 1000
_TAIL = 0.99
_LEAST_RATIO = 2.0  # of tails with long prompts to those without
_LEAST_GAIN_S = 0.02
_MOST_BUSY_PREFILL = 0.7  # share of the time
_MOST_ROWS = 0.5  # share of an engine's rows that streams may take on average
_BOUNDS_S = tuple(0.001 * 1.25**power for power in range(62))  # to some 15 minutes


class RoleAdvice(NamedTuple):
    """Number of engines that should compute long prompts, 0 where roles would not help, and the tails that say so."""

    num_prefill: int
    token_gap_p99_s: float
    undisturbed_token_gap_p99_s: float  # of tokens that came while their engine computed no long prompt
    ttft_p99_s: float  # of prompts that are not long
    undisturbed_ttft_p99_s: float


@dataclass(slots=True)
class _Times:
    """Times of one kind by bucket: beside long prompts, and without."""

    disturbed: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    undisturbed: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))

    def add(self, seconds: float, count: int, *, is_disturbed: bool) -> None:
        counts = self.disturbed if is_disturbed else self.undisturbed
        counts[bisect_left(_BOUNDS_S, seconds)] += count


@dataclass(slots=True)
class _Window:
    """Measurements since some time."""

    begun_s: float
    gaps: _Times = field(default_factory=_Times)
    first_tokens: _Times = field(default_factory=_Times)
    stream_s: float = 0.0  # of all requests on engines
    prefill_s: float = 0.0  # of all engines, with long prompts


class RoleAdvisor:
    """Measures one model's engines as a router sees them: gaps between tokens, first tokens, and work.

    Work that other routers send is not counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._old = self._young = _Window(clock())

    def note_gap(self, seconds: float, num_tokens: int, *, is_disturbed: bool) -> None:
        """Record that so many streams of an engine waited so long for a further token."""
        self._current().gaps.add(seconds, num_tokens, is_disturbed=is_disturbed)

    def note_first_token(self, seconds: float, *, is_disturbed: bool) -> None:
        """Record the time from the sending of a prompt that is not long to its first token."""
        self._current().first_tokens.add(seconds, 1, is_disturbed=is_disturbed)

    def note_work(self, seconds: float, num_requests: int, *, is_prefill: bool) -> None:
        """Record a time for which an engine had so many requests, with `is_prefill` a long prompt among them."""
        window = self._current()
        window.stream_s += seconds * num_requests
        window.prefill_s += seconds if is_prefill else 0.0

    def advise(self, num_engines: int, max_num_seqs: int = 0) -> RoleAdvice:
        """Return the advice for as many engines as there are, of so many rows each (0: unknown).

        Roles help where the tail of gaps or of first tokens is twice what it is without long prompts, and where both
        parts of the work fit the engines that would have it.
        """
        gap_tail, calm_gap_tail, num_gaps = self._tails(lambda window: window.gaps)
        ttft_tail, calm_ttft_tail, _ = self._tails(lambda window: window.first_tokens)
        num_prefill = 0
        is_worse = _is_worse(gap_tail, calm_gap_tail) or _is_worse(ttft_tail, calm_ttft_tail)
        if is_worse and num_gaps >= _FEWEST_GAPS:
            num_prefill = self._fitting(num_engines, max_num_seqs)
        return RoleAdvice(num_prefill, gap_tail, calm_gap_tail, ttft_tail, calm_ttft_tail)

    def _fitting(self, num_engines: int, max_num_seqs: int) -> int:
        """Return the number of prefill engines that the work needs; 0 where it leaves too few others."""
        windows = self._windows()
        lasted_s = max(1e-9, self._clock() - windows[0].begun_s)
        prefill = sum(window.prefill_s for window in windows) / lasted_s
        num_streams = sum(window.stream_s for window in windows) / lasted_s
        num_prefill = max(1, math.ceil(prefill / _MOST_BUSY_PREFILL))
        num_decode = max(1, math.ceil(num_streams / (_MOST_ROWS * max_num_seqs))) if max_num_seqs else 1
        return num_prefill if num_prefill + num_decode <= num_engines else 0

    def _tails(self, kind: Callable[[_Window], _Times]) -> tuple[float, float, int]:
        """Return the tail of all times of a kind, that of undisturbed ones, and their number."""
        windows = [kind(window) for window in self._windows()]
        calm = [sum(counts) for counts in zip(*(times.undisturbed for times in windows), strict=True)]
        disturbed = [sum(counts) for counts in zip(*(times.disturbed for times in windows), strict=True)]
        every = [sum(counts) for counts in zip(calm, disturbed, strict=True)]
        return _quantile(every), _quantile(calm), sum(every)

    def _windows(self) -> list[_Window]:
        self._current()
        return [self._young] if self._old is self._young else [self._old, self._young]

    def _current(self) -> _Window:
        now = self._clock()
        if now - self._young.begun_s >= WINDOW_S:
            is_recent = now - self._young.begun_s < 2 * WINDOW_S
            young = _Window(now)
            self._old, self._young = (self._young if is_recent else young), young
        return self._young


class EngineTimes:
    """Measures one engine for the advisor; called once per message, request and end, and does little."""

    def __init__(self, advisor: RoleAdvisor, clock: Callable[[], float] = time.monotonic) -> None:
        self._advisor = advisor
        self._clock = clock
        self._num_open = self._num_long = 0
        self._since_s = 0.0  # while `_num_open` and `_num_long` are what they are
        self._latest_s = 0.0  # time of the latest tokens

    def begin(self, num_prefill_tokens: int) -> "PromptTimes":
        """Record that a request was sent, with so many tokens to be computed before its first one."""
        now = self._count_time()
        is_long = num_prefill_tokens >= LONG_PROMPT_TOKENS
        prompt = PromptTimes(sent_s=now, is_long=is_long, is_disturbed=self._num_long > 0)
        self._num_open += 1
        self._num_long += is_long
        return prompt

    def note_first_token(self, prompt: "PromptTimes") -> None:
        """Record that a request's prompt is computed."""
        now = self._count_time()
        if prompt.is_long and not prompt.has_token:
            self._num_long -= 1
        elif not prompt.has_token:
            self._advisor.note_first_token(now - prompt.sent_s, is_disturbed=prompt.is_disturbed)
        prompt.has_token = True

    def end(self, prompt: "PromptTimes") -> None:
        """Record that a request has ended, with tokens or without."""
        self._count_time()
        self._num_open -= 1
        self._num_long -= prompt.is_long and not prompt.has_token

    def note_tokens(self, num_continued: int, *, was_disturbed: bool) -> None:
        """Record a message with tokens, those of `num_continued` streams after their first."""
        now = self._clock()
        if num_continued and self._latest_s:
            self._advisor.note_gap(now - self._latest_s, num_continued, is_disturbed=was_disturbed)
        self._latest_s = now

    @property
    def has_long_prompt(self) -> bool:
        """Whether the engine has a long prompt that is not computed."""
        return self._num_long > 0

    def _count_time(self) -> float:
        now = self._clock()
        if self._num_open:
            self._advisor.note_work(now - self._since_s, self._num_open, is_prefill=self._num_long > 0)
        self._since_s = now
        return now


@dataclass(kw_only=True, slots=True)
class PromptTimes:
    """One request's prompt on an engine."""

    sent_s: float
    is_long: bool
    is_disturbed: bool  # whether a long prompt was before it
    has_token: bool = False


def _quantile(counts: Sequence[int]) -> float:
    """Return the bound of the bucket with the tail; 0 without any time."""
    total, below = sum(counts), 0
    for bound, count in zip((*_BOUNDS_S, math.inf), counts, strict=True):
        below += count
        if total and below >= _TAIL * total:
            return bound
    return 0.0


def _is_worse(tail_s: float, calm_tail_s: float) -> bool:
    return calm_tail_s > 0 and tail_s >= _LEAST_RATIO * calm_tail_s and tail_s - calm_tail_s >= _LEAST_GAIN_S
