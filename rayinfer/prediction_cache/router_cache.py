"""The cache of one router, built from its settings."""

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cache_settings import PredictionCacheSettings
from rayinfer.prediction_cache.cached_predictor import PredictionCache
from rayinfer.prediction_cache.memory_cache import MemoryCache


class RouterCache:
    """Caches that the predictors of a router share, and the connections of Redis."""

    def __init__(self, settings: PredictionCacheSettings, metrics: ServiceMetrics) -> None:
        self.shared = PredictionCache(memory=MemoryCache(settings.max_bytes, metrics.prediction_cache_counts()))

    async def close(self) -> None:
        """Disconnect."""
