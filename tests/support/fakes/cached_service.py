"""A fake predictor behind a cache, and a client of it."""

import asyncio
import contextlib

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cached_predictor import CachedPredictor, PredictionCache
from rayinfer.prediction_cache.memory_cache import MemoryCache
from rayinfer.prediction_cache.redis_cache import RedisCache
from rayinfer.prediction_outputs import output_numbers
from support.fakes.held_predictor import HeldPredictor, item
from support.services.polling import until

WITHIN_S = 20.0


class CachedService:
    """One router's cache in memory, and perhaps Redis behind it."""

    def __init__(self, connection=None, max_bytes=2**20, **settings):
        self.metrics = ServiceMetrics()
        self.counts = self.metrics.prediction_cache_counts()
        self.predictor = HeldPredictor()
        self.redis = None if connection is None else RedisCache(connection, self.counts, **settings)
        self._cache = PredictionCache(memory=MemoryCache(max_bytes, self.counts), remote=self.redis)
        self.cached = CachedPredictor("tiny", self.predictor, self._cache, self.metrics)

    @property
    def model_counts(self):
        return self.counts.of("tiny")

    async def ask(self, *arguments, **fields):
        request = item(*arguments, **fields)
        async with asyncio.timeout(WITHIN_S), contextlib.aclosing(self.cached.generate(request)) as outputs:
            (output,) = [output async for output in outputs]
        assert output.request_id == request.request_id
        assert output.finished
        return output

    async def number(self, *arguments, **fields):
        """Return which computation an item was answered by."""
        return int(output_numbers((await self.ask(*arguments, **fields)).prediction)[0])

    async def ask_together(self, count, **fields):
        """Begin equal items whose first one is held by the predictor."""
        self.predictor.is_open.clear()
        tasks = [asyncio.create_task(self.ask(f"r{index}", **fields)) for index in range(count)]
        await until(lambda: self.predictor.started)
        return tasks
