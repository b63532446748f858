"""Predictions in memory, bounded by their bytes; the least recently used leave first."""

from collections import OrderedDict
from dataclasses import dataclass

from rayinfer.metrics.prediction_cache_counts import PredictionCacheCounts
from rayinfer.prediction_cache.cache_key import CacheKey
from rayinfer.predictions import PredictionOutput

ENTRY_BYTES = 512  # of its key, its objects and its place in the table, about


@dataclass(frozen=True, slots=True)
class CachedPrediction:
    """A prediction and the seconds in which it was computed, with the time in queues."""

    output: PredictionOutput
    computed_s: float

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in memory."""
        return ENTRY_BYTES + len(self.output.data)


class MemoryCache:
    """Predictions of all models of a router; its size is kept in the counts."""

    def __init__(self, max_bytes: int, counts: PredictionCacheCounts) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CacheKey, CachedPrediction] = OrderedDict()
        self._counts = counts

    def get(self, key: CacheKey) -> CachedPrediction | None:
        """Return a prediction, which becomes the latest used."""
        if (found := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: CacheKey, prediction: CachedPrediction) -> None:
        """Keep a prediction, and drop others where there is no room; one that is larger than the cache is not kept."""
        counts = self._counts
        if prediction.num_bytes > self._max_bytes:
            return
        if (replaced := self._entries.pop(key, None)) is not None:
            counts.memory_bytes -= replaced.num_bytes
        self._entries[key] = prediction
        counts.memory_bytes += prediction.num_bytes
        while counts.memory_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            counts.memory_bytes -= oldest.num_bytes
            counts.num_evicted += 1
        counts.num_entries = len(self._entries)
