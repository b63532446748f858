"""Adapters of an engine: those that are in memory, for requests that name them."""

import time
from collections.abc import Callable, Sequence

from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.executor_commands import AdapterFacts
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import digest_in, name_in
from rayinfer.outputs import AdapterStats, EngineStats

MAX_REPORTED_ADAPTERS = 256  # to routers, with every step
MAX_REPORTED_NAMES = 64  # of adapters of running and of waiting requests


class EngineAdapters:
    """Adapters by digest; `max_in_memory` stay in host memory, and more while unfinished requests have them."""

    def __init__(
        self,
        executor: Executor,
        max_in_memory: int,
        slots: SlotAllocator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor, self._max_in_memory, self._slots, self._clock = executor, max_in_memory, slots, clock
        self._in_memory: dict[str, int] = {}  # bytes by digest, the least recently used first
        self._names: dict[str, str] = {}  # that requests had last, by digest
        self._counts = AdapterStats(max_loras=slots.num_slots)

    @property
    def in_memory(self) -> list[str]:
        """The digests of those that no request has to wait for, the least recently used first."""
        return list(self._in_memory)

    @property
    def num_loaded(self) -> int:
        """Adapters that were read from files so far."""
        return self._counts.loads_total

    def load(self, folder: str) -> AdapterFacts:
        """Read an adapter; raises AdapterRefused."""
        started_s = self._clock()
        try:
            facts = self._executor.load_adapter(folder)
        except AdapterRefused:
            self._counts.failed_loads_total += 1
            raise
        self._counts.loads_total += 1
        self._counts.load_seconds_total += self._clock() - started_s
        self._touch(facts.digest, facts.num_bytes)
        return facts

    def use(self, adapter_id: str, folder: str) -> str:
        """Bring a request's adapter to memory and return its digest; raises AdapterRefused where that cannot be."""
        digest = digest_in(adapter_id)
        if digest in self._in_memory:
            self._touch(digest, self._in_memory[digest])
        elif self.load(folder).digest != digest:
            raise AdapterRefused(f"{folder} has changed since adapter {adapter_id} was loaded: load it again")
        self._names[digest] = name_in(adapter_id)
        return digest

    def report(self, stats: EngineStats) -> None:
        """Enter what is in memory, and what requests have, into the engine's stats."""
        stats.adapters_in_memory = self.in_memory[-MAX_REPORTED_ADAPTERS:]
        stats.adapters = AdapterStats(
            max_loras=self._counts.max_loras,
            running=self._names_of(self._slots.running),
            waiting=self._names_of(self._slots.waiting),
            num_resident=len(self._in_memory),
            resident_bytes=sum(self._in_memory.values()),
            loads_total=self._counts.loads_total,
            failed_loads_total=self._counts.failed_loads_total,
            evictions_total=self._counts.evictions_total,
            load_seconds_total=self._counts.load_seconds_total,
        )

    def _names_of(self, digests: Sequence[str]) -> list[str]:
        return sorted(self._names[digest] for digest in digests[:MAX_REPORTED_NAMES])

    def _touch(self, digest: str, num_bytes: int) -> None:
        """Make this one the last to be evicted, and evict what is too much and not in use."""
        self._in_memory.pop(digest, None)
        self._in_memory[digest] = num_bytes
        if len(self._in_memory) <= self._max_in_memory:
            return
        kept = {digest} | self._slots.unfinished
        for other in [each for each in self._in_memory if each not in kept]:
            if len(self._in_memory) > self._max_in_memory:
                del self._in_memory[other]
                self._names.pop(other, None)
                self._executor.drop_adapter(other)
                self._counts.evictions_total += 1
