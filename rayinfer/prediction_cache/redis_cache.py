"""Predictions in Redis, which routers share: it is asked in batches, and fails open behind a circuit breaker."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from rayinfer.metrics.prediction_cache_counts import BreakerState, PredictionCacheCounts
from rayinfer.prediction_cache.cache_key import VERSION, CacheKey
from rayinfer.prediction_cache.circuit_breaker import CircuitBreaker
from rayinfer.prediction_cache.memory_cache import CachedPrediction
from rayinfer.prediction_cache.payload import MAX_PAYLOAD_BYTES, InvalidPayload, decode_payload, encode_payload
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

    async def set_all(self, values: Sequence[tuple[str, bytes, int]]) -> int:
        """Write values with their names and seconds to live; returns how many were refused, as memory is full."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class RedisCache:
    """A RemoteCache; it never raises, and holds no request up for longer than `timeout_s`.

    Look-ups of one turn of the event loop are one command, so a list of items is one. Garbage is a miss.
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
        self._wanted: list[tuple[CacheKey, asyncio.Future[bytes | None]]] = []
        self._unwritten: deque[tuple[CacheKey, CachedPrediction]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(
        self, key: CacheKey, task: PredictionTask, predictor: PredictorDescription
    ) -> CachedPrediction | None:
        """Look up a prediction that such a predictor can have made for a task."""
        payload = await self._get_payload(key)
        if payload is None:
            return None
        try:
            return decode_payload(key, payload, self._secret, task, predictor)
        except InvalidPayload:
            self._counts.count_redis_error("invalid")
            return None

    def put(self, key: CacheKey, prediction: CachedPrediction) -> None:
        """Write a prediction soon; it is dropped where Redis is not asked, or is slower than engines."""
        if self._breaker.state != "closed" or len(prediction.output.data) > MAX_PAYLOAD_BYTES // 2:
            return
        if len(self._unwritten) >= MAX_WRITES:
            self._counts.count_redis_error("dropped")
            return
        self._unwritten.append((key, prediction))
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

    def _get_payload(self, key: CacheKey) -> "asyncio.Future[bytes | None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._look_up)
        self._wanted.append((key, future))
        return future

    def _look_up(self) -> None:
        """Ask for everything that was wanted in this turn of the event loop."""
        wanted, self._wanted = self._wanted, []
        for start in range(0, len(wanted), MAX_KEYS):
            some = wanted[start : start + MAX_KEYS]
            if self._breaker.allows():
                self._start(self._fetch(some))
            else:
                _answer(some, [None] * len(some))

    async def _fetch(self, wanted: "Sequence[tuple[CacheKey, asyncio.Future[bytes | None]]]") -> None:
        payloads: Sequence[bytes | None] = [None] * len(wanted)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._connection.get_all([_name(key) for key, _ in wanted])
            if len(found) == len(wanted):
                payloads = found
            self._breaker.record_success()
        except Exception as error:
            self._note_failure(error)
        finally:
            _answer(wanted, payloads)

    async def _write(self) -> None:
        while self._unwritten and self._breaker.state == "closed":
            some = list(islice(self._unwritten, MAX_KEYS))
            for _ in some:
                self._unwritten.popleft()
            values = [
                (_name(key), encode_payload(key, prediction, self._secret), _seconds_to_live())
                for key, prediction in some
            ]
            try:
                async with asyncio.timeout(self._timeout_s):
                    num_refused = await self._connection.set_all(values)
                self._counts.count_redis_error("refused", num_refused)
            except Exception as error:
                self._note_failure(error)
        self._unwritten.clear()

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


def _answer(
    wanted: "Sequence[tuple[CacheKey, asyncio.Future[bytes | None]]]", payloads: Sequence[bytes | None]
) -> None:
    for (_, future), payload in zip(wanted, payloads, strict=True):
        if not future.done():
            future.set_result(payload)


def _name(key: CacheKey) -> str:
    return f"rayinfer:prediction:{VERSION}:{key.hex()}"


def _seconds_to_live() -> int:
    return round(TTL_S * random.uniform(1 - TTL_JITTER, 1 + TTL_JITTER))
