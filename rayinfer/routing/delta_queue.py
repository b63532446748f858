"""Queue of one stream's token deltas that its reader has not taken yet."""

import asyncio

from rayinfer.errors import Unavailable
from rayinfer.outputs import TokenDelta
from rayinfer.routing.bounded_wait import wait_within

MAX_HOLD_S = 0.5  # so a paused or slow engine delays no text


class DeltaQueue:
    """Collects a stream's deltas; while its reader is busy, those of one engine request are merged.

    It therefore holds at most one delta per choice, however slow the reader is. With an `interval`, deltas are also
    merged until one has so many tokens, but for `max_hold_s` at most; first tokens and ends are never delayed.
    """

    def __init__(self, interval: int = 1, max_hold_s: float = MAX_HOLD_S) -> None:
        self._interval = interval
        self._max_hold_s = max_hold_s
        self._hold_timer: asyncio.TimerHandle | None = None  # set while tokens wait for more
        self._pending: dict[str, TokenDelta] = {}
        self._is_due = False  # whether what is pending may be taken
        self._has_delivered = False
        self._failure: Unavailable | None = None
        self._reader: asyncio.Future[None] | None = None  # set while it waits

    def put(self, delta: TokenDelta) -> None:
        """Add a delta and wake the reader; never waits."""
        before = self._pending.get(delta.request_id)
        delta = self._pending[delta.request_id] = delta if before is None else join_deltas(before, delta)
        if (
            len(delta.token_ids) >= self._interval
            or delta.finish_reason is not None
            or delta.start_pos == 0
            or not self._has_delivered
        ):
            self._make_due()
        elif self._hold_timer is None:
            self._hold_timer = asyncio.get_running_loop().call_later(self._max_hold_s, self._make_due)

    def fail(self, error: Unavailable) -> None:
        """End the queue: the reader gets the remaining deltas, then this error."""
        self._failure = error
        self._wake()

    async def take(self, timeout_s: float | None = None) -> list[TokenDelta]:
        """Wait until deltas are due and take them all; after the timeout, those that are there.

        Raises TimeoutError when there is none by then, and the failure once all deltas before it were taken.
        """
        if not self._is_due and self._failure is None:
            await self._wait(timeout_s)
        if self._pending:
            deltas = list(self._pending.values())
            self._pending.clear()
            self._is_due, self._has_delivered = False, True
            self._cancel_hold()
            return deltas
        assert self._failure is not None, "woken for nothing"
        raise self._failure

    async def _wait(self, timeout_s: float | None) -> None:
        self._reader = reader = asyncio.get_running_loop().create_future()
        try:
            await wait_within(reader, timeout_s)
        except TimeoutError:
            if not self._pending:
                raise
        finally:
            self._reader = None

    def _make_due(self) -> None:
        self._is_due = True
        self._wake()

    def _cancel_hold(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def join_deltas(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Merge two consecutive deltas."""
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or []), *(second.logprobs or [])]
    return TokenDelta(
        request_id=first.request_id,
        start_pos=first.start_pos,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=logprobs,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
        prompt_logprobs=first.prompt_logprobs if second.prompt_logprobs is None else second.prompt_logprobs,
        error=second.error,
    )
