"""Connections to Redis through its package, which is imported once a cache wants them."""

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from rayinfer.errors import ConfigError
from rayinfer.prediction_cache.redis_claims import Claim, Claimed

EXTRA = 'pip install "rayinfer[redis]"'
TIMEOUT_S = 0.05  # of each command, a connection's opening and the wait for a free one
MAX_CONNECTIONS = 8


class RedisConnection:
    """A bounded pool without retries; every failure is raised as some Exception, at the latest after the timeout."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """Connect at the first command; raises ConfigError."""
        check_extra_is_installed()
        redis: Any = importlib.import_module("redis.asyncio")
        retry: Any = importlib.import_module("redis.asyncio.retry")
        backoff: Any = importlib.import_module("redis.backoff")
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            retry=retry.Retry(backoff.NoBackoff(), 0),
            **({} if url.startswith("unix:") else {"socket_connect_timeout": timeout_s}),
        )
        self._client = redis.Redis.from_pool(pool)

    async def get_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the values in the order of their names, in one command."""
        values: list[bytes | None] = await self._client.mget(names)
        return values

    async def set_all(self, values: Sequence[tuple[str, bytes, int]], removed: Sequence[str] = ()) -> int:
        """Write values with their names and seconds to live, then remove names, in one round trip.

        Returns how many values were refused, as memory is full.
        """
        pipeline = self._client.pipeline(transaction=False)
        for name, value, lives_s in values:
            pipeline.set(name, value, ex=lives_s)
        if removed:
            pipeline.delete(*removed)
        replies = await pipeline.execute(raise_on_error=False)
        return sum(isinstance(reply, Exception) for reply in replies[: len(values)])

    async def claim_all(self, claims: Sequence[Claim], lives_ms: int) -> list[Claimed]:
        """Write those of some names that are free, and read the items, in one round trip.

        What Redis refuses to write counts as free.
        """
        pipeline = self._client.pipeline(transaction=False)
        for claim in claims:
            pipeline.set(claim.name, claim.value, nx=True, px=lives_ms)
        pipeline.mget([claim.item for claim in claims])
        *replies, items = await pipeline.execute(raise_on_error=False)
        if isinstance(items, Exception):
            raise items
        return [Claimed(reply is not None, item) for reply, item in zip(replies, items, strict=True)]

    async def renew_all(self, names: Sequence[str], lives_ms: int) -> None:
        """Let names live as long again."""
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.pexpire(name, lives_ms)
        await pipeline.execute(raise_on_error=False)

    async def remove_all(self, names: Sequence[str]) -> None:
        """Remove names."""
        await self._client.delete(*names)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def check_extra_is_installed() -> None:
    """Raise ConfigError where the package is missing."""
    if find_spec("redis") is None:
        raise ConfigError(f"prediction_cache_url needs the package redis: {EXTRA}")
