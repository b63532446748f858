"""Claims in Redis: which of the routers computes an item, while the others wait for its result."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from rayinfer.prediction_cache.cache_key import VERSION, CacheKey
from rayinfer.prediction_cache.memory_cache import CachedPrediction

CLAIM_S = 2.0  # that a claim lives; its router renews it while it computes, so only one that has died lets it lapse
FIRST_POLL_S, LONGEST_POLL_S = 0.005, 0.05
MAX_CLAIMS = 128  # of one command


class Claim(NamedTuple):
    """A claim's name and value, and the name of its item."""

    name: str
    value: bytes
    item: str


class Claimed(NamedTuple):
    """Reply to a claim: whether no other router had it, and the item as it is behind that."""

    is_free: bool
    content: bytes | None


class ClaimCommands(Protocol):
    """Commands that claims send."""

    async def claim_all(self, claims: Sequence[Claim], lives_ms: int) -> list[Claimed]:
        """Write those of some names that are free, then read the items."""
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
Decode = Callable[[bytes | None], CachedPrediction | None]
ReadClaim = Callable[[], Awaitable[bytes | None]]


class RedisClaims:
    """Claims of one router. Whatever fails, the item is computed: the same one in several routers does no harm."""

    def __init__(
        self,
        commands: ClaimCommands,
        send: Send,
        start: Callable[[Coroutine[Any, Any, None]], object],
        item_name: Callable[[CacheKey], str],
    ) -> None:
        self._commands, self._send, self._start, self._item_name = commands, send, start, item_name
        self._held: set[CacheKey] = set()
        self._wanted: list[tuple[CacheKey, int, asyncio.Future[Claimed]]] = []
        self._is_renewing = False

    async def wait(
        self, key: CacheKey, priority: int, missed: bytes | None, decode: Decode, read: Read, read_claim: ReadClaim
    ) -> CachedPrediction | None:
        """Return what another router computes now; None: the caller is to compute it, and then to `end` its claim.

        Nothing waits for a router that computes it with less urgency. Another one may have written the item and removed
        its claim since it was `missed`.
        """
        pause_s = FIRST_POLL_S
        while not (claimed := await self._claim(key, priority)).is_free:
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
        if claimed.content in (None, missed) or (found := decode(claimed.content)) is None:
            return None
        self.release(key)
        return found

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

    def _claim(self, key: CacheKey, priority: int) -> "asyncio.Future[Claimed]":
        """Claim with all others of this turn of the event loop, in one command."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Claimed] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._send_wanted)
        self._wanted.append((key, priority, future))
        return future

    def _send_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), MAX_CLAIMS):
            self._start(self._claim_all(wanted[start : start + MAX_CLAIMS]))

    async def _claim_all(self, wanted: "Sequence[tuple[CacheKey, int, asyncio.Future[Claimed]]]") -> None:
        claims = [Claim(claim_name(key), str(priority).encode(), self._item_name(key)) for key, priority, _ in wanted]
        replies: object = None
        try:
            replies = await self._send(lambda: self._commands.claim_all(claims, round(CLAIM_S * 1000)))
        finally:
            found = replies if isinstance(replies, list) and len(replies) == len(wanted) else None
            for index, (key, _, future) in enumerate(wanted):
                claimed = Claimed(True, None) if found is None else found[index]
                is_held = found is not None and claimed.is_free
                if is_held:
                    self._hold(key)
                if not future.done():
                    future.set_result(claimed)
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
