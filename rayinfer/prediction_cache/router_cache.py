"""The cache of one router, built from its settings."""

from pathlib import Path

from rayinfer.errors import ConfigError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cache_settings import PredictionCacheSettings
from rayinfer.prediction_cache.cached_predictor import PredictionCache
from rayinfer.prediction_cache.memory_cache import MemoryCache
from rayinfer.prediction_cache.redis_cache import RedisCache
from rayinfer.prediction_cache.redis_connection import RedisConnection


class RouterCache:
    """Caches that the predictors of a router share, and the connections of Redis."""

    def __init__(self, settings: PredictionCacheSettings, metrics: ServiceMetrics) -> None:
        """Raise ConfigError without the package of Redis, or without a readable secret."""
        counts = metrics.prediction_cache_counts()
        self._redis: RedisCache | None = None
        if settings.url is not None:
            secret = read_secret(settings.secret_file)
            self._redis = RedisCache(RedisConnection(settings.url), counts, secret=secret)
        self.shared = PredictionCache(memory=MemoryCache(settings.max_bytes, counts), remote=self._redis)

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._redis is not None:
            await self._redis.close()


def read_secret(file: str | None) -> bytes:
    """Read the secret that signs payloads, b"" without a file; raises ConfigError."""
    if file is None:
        return b""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"prediction_cache_secret_file: {file} cannot be read: {error.strerror}") from None
    if not secret:
        raise ConfigError(f"prediction_cache_secret_file: {file} is empty")
    return secret
