"""Predictions in Redis, which routers share: it is asked in batches, and fails open behind a circuit breaker."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from rayinfer.metrics.prediction_cache_counts import BreakerState, PredictionCacheCounts
from rayinfer.prediction_cache.cache_key import VERSION, CacheKey
from rayinfer.prediction_cache.circuit_breaker import CircuitBreaker
from rayinfer.prediction_cache.memory_cache import CachedPrediction
from rayinfer.prediction_cache.payload import MAX_PAYLOAD_BYTES, InvalidPayload, decode_payload, encode_payload
from rayinfer.prediction_cache.redis_claims import Claim, Claimed, RedisClaims, claim_name
from rayinfer.prediction_cache.redis_connection import TIMEOUT_S
from rayinfer.predictions import PredictionTask, PredictorDescription

logger = logging.getLogger(__name__)

TTL_S = 24 * 3600
TTL_JITTER = 0.1  # so that what was written together does not end together
MAX_KEYS = 128  # of one command
MAX_WRITES = 1024  # that wait; more are dropped


class Connection(Protocol):
    """Commands that the cache sends; RedisConnection has them."""

    async def get_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the values in the order of their names."""
        ...

    async def set_all(self, values: Sequence[tuple[str, bytes, int]], removed: Sequence[str] = ()) -> int:
        """Write values with their names and seconds to live, then remove names; returns how many were refused."""
        ...

    async def claim_all(self, claims: Sequence[Claim], lives_ms: int) -> list[Claimed]:
        """Write those of some names that are free; returns which were not taken by another."""
        ...

    async def renew_all(self, names: Sequence[str], lives_ms: int) -> None:
        """Let names live as long again."""
        ...

    async def remove_all(self, names: Sequence[str]) -> None:
        """Remove names."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class _Value(NamedTuple):
    """The reply to a look-up."""

    content: bytes | None
    is_known: bool = True  # false: Redis failed, or was not asked


class RedisCache:
    """A RemoteCache; it never raises, and each command takes `timeout_s` at most.

    Look-ups of one turn of the event loop are one command, so a list of items is one. Garbage is a miss. What another
    router computes now is waited for (`redis_claims.py`).
    """

    def __init__(
        self,
        connection: Connection,
        counts: PredictionCacheCounts,
        *,
        secret: bytes = b"",
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._counts = counts
        self._secret = secret
        self._timeout_s = timeout_s
        self._breaker = CircuitBreaker(clock, self._note_state)
        self._claims = RedisClaims(connection, self._send, self._start, _name)
        self._wanted: list[tuple[str, asyncio.Future[_Value]]] = []
        self._unwritten: deque[_Write] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(
        self, key: CacheKey, task: PredictionTask, predictor: PredictorDescription, priority: int = 0
    ) -> CachedPrediction | None:
        """Look up a prediction that such a predictor can have made for a task; wait where another router makes it.

        None: the caller is to make it, then to `put` or to `release` it.
        """
        value = await self._get(_name(key))

        def decoded(content: bytes | None) -> CachedPrediction | None:
            return self._decode(key, content, task, predictor)

        async def read() -> CachedPrediction | None:
            return decoded((await self._get(_name(key))).content)

        async def read_claim() -> bytes | None:
            return (await self._get(claim_name(key))).content

        if (found := decoded(value.content)) is not None or not value.is_known:
            return found
        return await self._claims.wait(key, priority, value.content, decoded, read, read_claim)

    def release(self, key: CacheKey) -> None:
        """Let other routers compute an item that was not found, as this one has not."""
        self._claims.release(key)

    def put(self, key: CacheKey, prediction: CachedPrediction) -> None:
        """Write a prediction soon; it is dropped where Redis is not asked, or is slower than engines."""
        if self._breaker.state != "closed" or len(prediction.output.data) > MAX_PAYLOAD_BYTES // 2:
            return
        if len(self._unwritten) >= MAX_WRITES:
            self._counts.count_redis_error("dropped")
            return
        self._unwritten.append(_Write(key, prediction, self._claims.end(key)))
        if self._writer is None or self._writer.done():
            self._writer = self._start(self._write())

    async def close(self) -> None:
        """End all commands and close the connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(1.0):
                await self._connection.close()
        except Exception as error:
            logger.debug("closing the connections to Redis failed: %s", type(error).__name__)

    def _decode(
        self, key: CacheKey, payload: bytes | None, task: PredictionTask, predictor: PredictorDescription
    ) -> CachedPrediction | None:
        if payload is None:
            return None
        try:
            return decode_payload(key, payload, self._secret, task, predictor)
        except InvalidPayload:
            self._counts.count_redis_error("invalid")
            return None

    def _get(self, name: str) -> "asyncio.Future[_Value]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Value] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._look_up)
        self._wanted.append((name, future))
        return future

    def _look_up(self) -> None:
        """Ask for everything that was wanted in this turn of the event loop."""
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), MAX_KEYS):
            some = wanted[start : start + MAX_KEYS]
            if self._breaker.allows():
                self._start(self._fetch(some))
            else:
                _answer(some, [_UNKNOWN] * len(some))

    async def _fetch(self, wanted: "Sequence[tuple[str, asyncio.Future[_Value]]]") -> None:
        values: Sequence[_Value] = [_UNKNOWN] * len(wanted)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._connection.get_all([name for name, _ in wanted])
            if len(found) == len(wanted):
                values = [_Value(content) for content in found]
            self._breaker.record_success()
        except Exception as error:
            self._note_failure(error)
        finally:
            _answer(wanted, values)

    async def _write(self) -> None:
        while self._unwritten and self._breaker.state == "closed":
            some = list(islice(self._unwritten, MAX_KEYS))
            for _ in some:
                self._unwritten.popleft()
            values = [
                (_name(key), encode_payload(key, prediction, self._secret), _seconds_to_live())
                for key, prediction, _ in some
            ]
            claims = [claim_name(each.key) for each in some if each.is_claimed]
            try:
                async with asyncio.timeout(self._timeout_s):
                    num_refused = await self._connection.set_all(values, claims)
                self._counts.count_redis_error("refused", num_refused)
            except Exception as error:
                self._note_failure(error)
        self._unwritten.clear()

    async def _send(self, command: Callable[[], Awaitable[object]]) -> object | None:
        """Send a command; None where Redis fails or is not asked. It runs in a task that no request cancels."""
        if not self._breaker.allows():
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await command()
        except Exception as error:
            self._note_failure(error)
            return None
        self._breaker.record_success()
        return reply

    def _start(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note_failure(self, error: Exception) -> None:
        self._counts.count_redis_error("failed")
        logger.debug("Redis failed: %s", error)
        self._breaker.record_failure()

    def _note_state(self, state: BreakerState) -> None:
        self._counts.breaker_state = state
        if state == "open":
            logger.warning("Redis fails, and is not asked for some seconds; predictions are computed")


class _Write(NamedTuple):
    """A prediction to be written, and whether this router has a claim on it."""

    key: CacheKey
    prediction: CachedPrediction
    is_claimed: bool


_UNKNOWN = _Value(None, is_known=False)


def _answer(wanted: "Sequence[tuple[str, asyncio.Future[_Value]]]", values: Sequence[_Value]) -> None:
    for (_, future), value in zip(wanted, values, strict=True):
        if not future.done():
            future.set_result(value)


def _name(key: CacheKey) -> str:
    return f"rayinfer:prediction:{VERSION}:{key.hex()}"


def _seconds_to_live() -> int:
    return round(TTL_S * random.uniform(1 - TTL_JITTER, 1 + TTL_JITTER))
