"""Limits of keys within one router, which counts what other routers report too."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rayinfer.access.api_key import ApiKey, KeyLimits
from rayinfer.access.owner_messages import KeyTotals
from rayinfer.access.usage import day_of
from rayinfer.errors import QuotaExceeded, RateLimited

MINUTE_S = 60.0
DAY_S = 86400.0
RATE_LIMIT_HEADERS = [
    f"x-ratelimit-{name}-{what}" for what in ("requests", "tokens") for name in ("limit", "remaining", "reset")
]
RUNNING_RETRY_S = 1.0
MAX_ROUTERS = 128  # whose counts are known, of those that are gone too
COUNTED = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "output_tokens_per_day")


class TokenBucket:
    """Bucket that holds a minute's allowance; it may go below zero by what was not known beforehand."""

    __slots__ = ("_clock", "_level", "_read_s", "per_minute")

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = per_minute
        self._read_s = clock()

    def level(self, share: float) -> float:
        """Return what is left of a router's share of the allowance."""
        now = self._clock()
        self._level += (now - self._read_s) * self.per_minute * share / MINUTE_S
        self._level = min(self._level, self.per_minute * share)
        self._read_s = now
        return self._level

    def take(self, amount: float) -> None:
        """Take an amount, whatever is left."""
        self._level -= amount

    def wait_s(self, amount: float, share: float) -> float:
        """Return the time until an amount is there."""
        return max(0.0, amount - self.level(share)) * MINUTE_S / (self.per_minute * share)


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Size of a request, as the limits of its key count it: known for prompts, at most for answers."""

    num_sequences: int = 1  # prompts times choices
    prompt_tokens: int = 0
    max_output_tokens: int = 0  # of all sequences, as far as it is known


class Holding:
    """Sequences and tokens that a running request holds of its key's limits."""

    __slots__ = ("num_sequences", "reserved_tokens")

    def __init__(self, num_sequences: int = 0, reserved_tokens: int = 0) -> None:
        self.num_sequences = num_sequences
        self.reserved_tokens = reserved_tokens  # for answers that are not generated yet

    def use(self, num_tokens: int) -> None:
        """Give back what is reserved for tokens that are generated, and counted otherwise."""
        self.reserved_tokens -= min(num_tokens, self.reserved_tokens)


class KeyState:
    """Use of the limits of one key."""

    __slots__ = (
        "limits",
        "others",
        "output_today",
        "requests",
        "tokens",
        "total_requests",
        "total_tokens",
        "unreported",
    )

    def __init__(self, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.requests = None if limits.requests_per_minute is None else TokenBucket(limits.requests_per_minute, clock)
        self.tokens = None if limits.tokens_per_minute is None else TokenBucket(limits.tokens_per_minute, clock)
        self.total_requests = self.total_tokens = 0  # since the router's start
        self.others: dict[str, KeyTotals] = {}  # by router
        self.output_today = 0  # that the owner knows
        self.unreported = 0  # that it does not

    def with_limits(self, limits: KeyLimits, clock: Callable[[], float]) -> "KeyState":
        """Return the state under other limits: full buckets, and the counts so far."""
        state = KeyState(limits, clock)
        state.total_requests, state.total_tokens = self.total_requests, self.total_tokens
        state.others, state.output_today, state.unreported = self.others, self.output_today, self.unreported
        return state


class RateLimits:
    """Limits of all keys that have some; keys without limits cost nothing here."""

    def __init__(self, find_key: Callable[[str], ApiKey | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._find_key = find_key  # by id
        self.share = 1.0  # of each limit, while the other routers' counts are not known
        self.changed: set[str] = set()  # ids whose totals are to be reported
        self._clock = clock
        self._states: dict[str, KeyState] = {}  # by id
        self._held: dict[str, set[Holding]] = {}  # by id
        self._day = day_of()

    def admit_request(self, key: ApiKey) -> None:
        """Count a request; raises RateLimited when the key has no more this minute."""
        if (state := self._state(key)) is None:
            return
        if state.requests is not None:
            if (wait_s := state.requests.wait_s(1, self.share)) > 0:
                raise RateLimited(f"The key's limit of {key.limits.requests_per_minute} requests a minute.", wait_s)
            state.requests.take(1)
        state.total_requests += 1
        self.changed.add(key.key_id)

    @contextmanager
    def admit_generation(self, key: ApiKey, size: RequestSize) -> Iterator[Holding]:
        """Hold what a request needs while it runs; raises RateLimited or QuotaExceeded when the key has not as much.

        The holding is given back as a whole, however the request ends.
        """
        if (state := self._state(key)) is None:
            yield Holding()
            return
        self._check_running(key, state, size.num_sequences)
        holding = Holding(size.num_sequences)
        if size.prompt_tokens:
            self._check_day(key, state)
            holding.reserved_tokens = self._take_tokens(key, state, size)
        held = self._held.setdefault(key.key_id, set())
        held.add(holding)
        self.changed.add(key.key_id)
        try:
            yield holding
        finally:
            held.discard(holding)
            if not held and self._held.get(key.key_id) is held:
                del self._held[key.key_id]
            self.changed.add(key.key_id)

    def count_output(self, key_id: str, num_tokens: int) -> None:
        """Count tokens that a key's answers have got."""
        if num_tokens and (state := self._states.get(key_id)) is not None:
            if state.tokens is not None:
                state.tokens.take(num_tokens)
            state.total_tokens += num_tokens
            state.unreported += num_tokens
            self.changed.add(key_id)

    def headers(self, key: ApiKey) -> list[tuple[bytes, bytes]]:
        """Return the headers that state the limits by the minute."""
        state = self._states.get(key.key_id)
        if state is None:
            return []
        found = []
        for what, bucket in ((b"requests", state.requests), (b"tokens", state.tokens)):
            if bucket is not None:
                reserved = self._reserved_tokens(key.key_id, state) if bucket is state.tokens else 0
                left = max(0, int(bucket.level(self.share) - reserved))
                full_s = bucket.wait_s(bucket.per_minute * self.share, self.share)
                found.append((b"x-ratelimit-limit-" + what, b"%d" % bucket.per_minute))
                found.append((b"x-ratelimit-remaining-" + what, b"%d" % left))
                found.append((b"x-ratelimit-reset-" + what, f"{full_s:.3f}s".encode()))
        return found

    def totals(self, key_ids: Iterable[str] | None = None) -> dict[str, KeyTotals]:
        """Return the totals of some keys, or of all."""
        found = {}
        for key_id in self._states if key_ids is None else key_ids:
            if (state := self._states.get(key_id)) is not None:
                held = self._held.get(key_id, ())
                running, reserved = sum(each.num_sequences for each in held), sum(each.reserved_tokens for each in held)
                found[key_id] = KeyTotals(state.total_requests, state.total_tokens, running, reserved)
        return found

    def take_over(self, router: str, totals: Mapping[str, KeyTotals], *, is_first: bool) -> None:
        """Take what another router has counted from the buckets here, unless that may have been long ago."""
        for key_id, now in totals.items():
            state = self._state_of(key_id)
            if state is None:
                continue
            before = state.others.pop(router, now if is_first else KeyTotals())
            state.others[router] = now
            if len(state.others) > MAX_ROUTERS:
                del state.others[next(iter(state.others))]  # the one that has been silent longest
            if state.requests is not None:
                state.requests.take(max(0, now.requests - before.requests))
            if state.tokens is not None:
                state.tokens.take(max(0, now.tokens - before.tokens))

    def forget_router(self, router: str) -> None:
        """Forget what requests of a router that is gone held; its counts stay, as it may come back."""
        for state in self._states.values():
            if (known := state.others.get(router)) is not None:
                state.others[router] = known._replace(num_running=0, reserved_tokens=0)

    def set_output_today(self, day: str, tokens: Mapping[str, int], reported: Mapping[str, int]) -> None:
        """Set what the owner knows of a day's answers, of which this router reported some."""
        if day != self._day:
            self._day = day
            for state in self._states.values():
                state.output_today = 0
        for key_id, num_tokens in tokens.items():
            counted = self._state_of(key_id)
            if counted is not None:
                counted.output_today = num_tokens
        for key_id, num_tokens in reported.items():
            if key_id in self._states:
                self._states[key_id].unreported -= num_tokens

    def forget_keys(self, is_known: Callable[[str], bool]) -> None:
        """Forget the keys that are removed."""
        for key_id in [key_id for key_id in self._states if not is_known(key_id)]:
            del self._states[key_id]

    def _state_of(self, key_id: str) -> KeyState | None:
        key = self._find_key(key_id)
        return None if key is None else self._state(key)

    def _state(self, key: ApiKey) -> KeyState | None:
        """Return the state of a key; None if it has no limit that needs counting."""
        state, limits = self._states.get(key.key_id), key.limits
        if state is not None and state.limits is limits:
            return state
        if state is not None and state.limits == limits:
            state.limits = limits  # read again from the file
        elif any(getattr(limits, name) is not None for name in COUNTED):
            state = KeyState(limits, self._clock) if state is None else state.with_limits(limits, self._clock)
            self._states[key.key_id] = state
        else:
            self._states.pop(key.key_id, None)
            return None
        return state

    def _check_running(self, key: ApiKey, state: KeyState, num_sequences: int) -> None:
        limit = key.limits.concurrent_requests
        if limit is None:
            return
        num_running = sum(each.num_sequences for each in self._held.get(key.key_id, ()))
        if self.share == 1.0:
            num_running += sum(other.num_running for other in state.others.values())
        allowed = max(1, int(limit * self.share))
        if num_running + min(num_sequences, allowed) > allowed:
            raise RateLimited(f"The key's limit of {limit} sequences at the same time.", RUNNING_RETRY_S)

    def _take_tokens(self, key: ApiKey, state: KeyState, size: RequestSize) -> int:
        """Take a prompt's tokens and return those to reserve for answers; raises RateLimited when there are too few."""
        if state.tokens is None:
            return 0
        allowance = int(state.tokens.per_minute * self.share)
        needed = min(size.prompt_tokens + size.max_output_tokens, allowance)  # a long one needs a full bucket
        reserved = self._reserved_tokens(key.key_id, state)
        if (wait_s := state.tokens.wait_s(needed + reserved, self.share)) > 0:
            raise RateLimited(f"The key's limit of {key.limits.tokens_per_minute} tokens a minute.", wait_s)
        state.tokens.take(size.prompt_tokens)
        state.total_tokens += size.prompt_tokens
        return max(0, needed - size.prompt_tokens)

    def _reserved_tokens(self, key_id: str, state: KeyState) -> int:
        """Return what running requests have reserved, those of other routers too."""
        reserved = sum(each.reserved_tokens for each in self._held.get(key_id, ()))
        if self.share == 1.0:
            reserved += sum(other.reserved_tokens for other in state.others.values())
        return reserved

    def _check_day(self, key: ApiKey, state: KeyState) -> None:
        limit = key.limits.output_tokens_per_day
        if limit is not None and state.unreported >= (limit - state.output_today) * self.share:
            raise QuotaExceeded(
                f"The key's limit of {limit} output tokens a day (UTC) is used up.", DAY_S - time.time() % DAY_S
            )
