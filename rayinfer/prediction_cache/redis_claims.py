"""Claims in Redis: which of the routers computes an item, while the others wait for its result."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from rayinfer.prediction_cache.cache_key import VERSION, CacheKey
from rayinfer.prediction_cache.memory_cache import CachedPrediction

CLAIM_S = 2.0  # that a claim lives; its router renews it while it computes, so only one that has died lets it lapse
FIRST_POLL_S, LONGEST_POLL_S = 0.005, 0.05
MAX_CLAIMS = 128  # of one command


class ClaimCommands(Protocol):
    """Commands that claims send."""

    async def claim_all(self, claims: Sequence[tuple[str, bytes]], lives_ms: int) -> list[bool]:
        """Write those of some names that are free; returns which were not taken by another."""
        ...

    async def renew_all(self, names: Sequence[str], lives_ms: int) -> None:
        """Let claims live as long again."""
        ...

    async def remove_all(self, names: Sequence[str]) -> None:
        """Remove claims."""
        ...


# Runs a command behind the breaker, beside its caller; None: it failed, or Redis is not asked.
Send = Callable[[Callable[[], Awaitable[object]]], Awaitable[object | None]]
Read = Callable[[], Awaitable[CachedPrediction | None]]
ReadClaim = Callable[[], Awaitable[bytes | None]]


class RedisClaims:
    """Claims of one router. Whatever fails, the item is computed: the same one in several routers does no harm."""

    def __init__(
        self, commands: ClaimCommands, send: Send, start: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._commands, self._send, self._start = commands, send, start
        self._held: set[CacheKey] = set()
        self._wanted: list[tuple[CacheKey, int, asyncio.Future[bool]]] = []
        self._is_renewing = False

    async def wait(self, key: CacheKey, priority: int, read: Read, read_claim: ReadClaim) -> CachedPrediction | None:
        """Return what another router computes now; None: the caller is to compute it, and then to `end` its claim.

        Nothing waits for a router that computes it with less urgency.
        """
        pause_s = FIRST_POLL_S
        while not await self._claim(key, priority):
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_POLL_S)
                claim = await read_claim()  # before the value, which is written before its claim is removed
                if (found := await read()) is not None:
                    return found
                if claim is None:
                    break
                if _priority(claim) > priority:
                    return None
        return None

    def end(self, key: CacheKey) -> bool:
        """Forget a claim, whose name the caller removes; returns whether it was held."""
        if key not in self._held:
            return False
        self._held.discard(key)
        return True

    def release(self, key: CacheKey) -> None:
        """Remove a claim whose item has no result, so that another router computes it at once."""
        if self.end(key):
            self._start(self._remove(key))

    def _claim(self, key: CacheKey, priority: int) -> "asyncio.Future[bool]":
        """Claim with all others of this turn of the event loop, in one command."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._send_wanted)
        self._wanted.append((key, priority, future))
        return future

    def _send_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), MAX_CLAIMS):
            self._start(self._claim_all(wanted[start : start + MAX_CLAIMS]))

    async def _claim_all(self, wanted: "Sequence[tuple[CacheKey, int, asyncio.Future[bool]]]") -> None:
        claims = [(claim_name(key), str(priority).encode()) for key, priority, _ in wanted]
        replies: object = None
        try:
            replies = await self._send(lambda: self._commands.claim_all(claims, round(CLAIM_S * 1000)))
        finally:
            free = replies if isinstance(replies, list) and len(replies) == len(wanted) else None
            for index, (key, _, future) in enumerate(wanted):
                is_held = free is not None and free[index]
                if is_held:
                    self._hold(key)
                if not future.done():
                    future.set_result(is_held or free is None)
                elif is_held:  # its request was cancelled
                    self.release(key)

    def _hold(self, key: CacheKey) -> None:
        self._held.add(key)
        if not self._is_renewing:
            self._is_renewing = True
            self._start(self._renew())

    async def _renew(self) -> None:
        try:
            while self._held:
                await asyncio.sleep(CLAIM_S / 3)
                names = [claim_name(key) for key in self._held]
                for start in range(0, len(names), MAX_CLAIMS):
                    some = names[start : start + MAX_CLAIMS]
                    await self._send(partial(self._commands.renew_all, some, round(CLAIM_S * 1000)))
        finally:
            self._is_renewing = False

    async def _remove(self, key: CacheKey) -> None:
        await self._send(lambda: self._commands.remove_all([claim_name(key)]))


def claim_name(key: CacheKey) -> str:
    """Return the name of an item's claim in Redis."""
    return f"rayinfer:claim:{VERSION}:{key.hex()}"


def _priority(claim: bytes) -> int:
    """Read a claim; garbage is as urgent as anything, so that it is waited for until it lapses."""
    try:
        return int(claim)
    except ValueError:
        return 0
