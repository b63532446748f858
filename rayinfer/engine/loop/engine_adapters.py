"""Adapters of an engine: those that are in memory, for requests that name them."""

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.executor_commands import AdapterFacts
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import digest_in, name_in
from rayinfer.outputs import AdapterStats, EngineStats

MAX_REPORTED_ADAPTERS = 256  # to routers, with every step
MAX_REPORTED_NAMES = 64  # of adapters of running and of waiting requests
MAX_REFUSED = 64  # readings whose refusal no request may have come for


@dataclass(slots=True)
class _Reading:
    """Reading of an adapter's files beside the steps; done whether they were refused or not."""

    name: str  # empty: an operator's
    folder: str
    started_s: float
    done: Future[float] = field(default_factory=Future)  # when
    refusal: AdapterRefused | None = None  # that `release_unused` met

    def when_done(self) -> Future[float]:
        """Return a future of one request, which may cancel it: others wait for the same files."""
        waiting: Future[float] = Future()

        def finish(done: Future[float]) -> None:
            if waiting.set_running_or_notify_cancel():
                waiting.set_result(done.result())

        self.done.add_done_callback(finish)
        return waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAdapterLimits:
    """Limits of host memory: so many adapters, of so many bytes as they were saved; None: no such limit."""

    max_adapters: int | None = None
    max_bytes: int | None = None

    def allow(self, num_adapters: int, num_bytes: int) -> bool:
        """Return whether so much may stay."""
        has_place = self.max_adapters is None or num_adapters <= self.max_adapters
        return has_place and (self.max_bytes is None or num_bytes <= self.max_bytes)


class EngineAdapters:
    """Adapters by digest; what `limits` allow stays in host memory, and more while unfinished requests have it."""

    def __init__(
        self,
        executor: Executor,
        limits: HostAdapterLimits,
        slots: SlotAllocator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor, self._limits, self._slots, self._clock = executor, limits, slots, clock
        self._in_memory: dict[str, AdapterFacts] = {}  # by digest, the least recently used first
        self._num_bytes = 0  # of those
        self._names: dict[str, str] = {}  # that requests had last, by digest
        self._reading: dict[str, _Reading] = {}  # by digest, for requests that are yet to be added, or by folder
        self.on_read: Callable[[], None] = lambda: None  # called from any thread: `release_unused` has work
        self._counts = AdapterStats(max_loras=slots.num_slots)

    @property
    def in_memory(self) -> list[str]:
        """The digests of those that no request has to wait for, the least recently used first."""
        return list(self._in_memory)

    @property
    def num_loaded(self) -> int:
        """Adapters that were read from files so far."""
        return self._counts.loads_total

    def start_reading(self, folder: str) -> Future[float]:
        """Start to read a folder that is about to be loaded; the future never fails, but `load` may."""
        self._reading[folder] = reading = self._start("", folder)
        return reading.done

    def start_using(self, adapter_id: str, folder: str) -> Future[float] | None:
        """Start to read a request's adapter unless it is in memory; requests that come meanwhile wait for the same."""
        digest = digest_in(adapter_id)
        if digest in self._in_memory:
            return None
        known = self._reading.get(digest)
        if known is None or known.done.done():  # what was read for a request that has left may be of another time
            known = self._reading[digest] = self._start(name_in(adapter_id), folder)
        return known.when_done()

    def load(self, folder: str, started_s: float | None = None) -> AdapterFacts:
        """Load an adapter, which was read since `started_s` or is read now; raises AdapterRefused."""
        reading = self._reading.pop(folder, None)
        started_s = (self._clock() if reading is None else reading.started_s) if started_s is None else started_s
        try:
            facts = self._executor.load_adapter(folder)
        except AdapterRefused:
            self._counts.failed_loads_total += 1
            raise
        self._counts.loads_total += 1
        self._counts.load_seconds_total += self._clock() - started_s
        self._touch(facts)
        return facts

    def use(self, adapter_id: str, folder: str) -> str:
        """Bring a request's adapter to memory and return its digest; raises AdapterRefused where that cannot be."""
        digest = digest_in(adapter_id)
        reading = self._reading.pop(digest, None)
        if digest in self._in_memory:
            self._touch(self._in_memory[digest])
        elif reading is not None and reading.refusal is not None:
            raise reading.refusal
        elif self.load(folder, None if reading is None else reading.started_s).digest != digest:
            raise AdapterRefused(f"{folder} has changed since adapter {adapter_id} was loaded: load it again")
        self._names[digest] = name_in(adapter_id)
        return digest

    def release_unused(self) -> None:
        """Load adapters whose requests left before they were added, and evict what is too much; between steps.

        Call it once the requests of all that was read were added: these adapters would be read again, if they leave.
        """
        for key, reading in [each for each in self._reading.items() if each[1].done.done()]:
            if reading.refusal is not None:
                continue
            try:
                self.load(reading.folder, reading.started_s)
            except AdapterRefused as error:
                reading.refusal = error
            else:
                self._reading.pop(key, None)
        for key in [key for key, reading in self._reading.items() if reading.refusal is not None][:-MAX_REFUSED]:
            del self._reading[key]
        self.evict()

    def evict(self) -> None:
        """Evict what the limits do not allow, the least recently used first, and no unfinished request has."""
        self._evict_others(self._slots.unfinished)

    def report(self, stats: EngineStats) -> None:
        """Enter what is in memory, and what requests have, into the engine's stats."""
        stats.adapters_in_memory = self.in_memory[-MAX_REPORTED_ADAPTERS:]
        stats.adapters = AdapterStats(
            max_loras=self._counts.max_loras,
            running=self._names_of(self._slots.running),
            waiting=self._waiting_names(),
            num_resident=len(self._in_memory),
            resident_bytes=self._num_bytes,
            slot_bytes=self._slots.num_bytes,
            loads_total=self._counts.loads_total,
            failed_loads_total=self._counts.failed_loads_total,
            evictions_total=self._counts.evictions_total,
            load_seconds_total=self._counts.load_seconds_total,
        )

    def _start(self, name: str, folder: str) -> _Reading:
        reading = _Reading(name, folder, self._clock())

        def finish(_: Future[Any]) -> None:
            reading.done.set_result(self._clock())
            self.on_read()

        self._executor.start_reading(folder).add_done_callback(finish)
        return reading

    def _waiting_names(self) -> list[str]:
        being_read = {reading.name for reading in self._reading.values() if not reading.done.done()}
        names = being_read - {""} | set(self._names_of(self._slots.waiting))
        return sorted(names)[:MAX_REPORTED_NAMES]

    def _names_of(self, digests: Sequence[str]) -> list[str]:
        return sorted(self._names[digest] for digest in digests[:MAX_REPORTED_NAMES])

    def _touch(self, facts: AdapterFacts) -> None:
        """Make this one the last to be evicted, and evict others that are too much and not in use."""
        if self._in_memory.pop(facts.digest, None) is None:
            self._num_bytes += facts.num_bytes
        self._in_memory[facts.digest] = facts
        self._slots.record_size(facts.digest, facts.slot_bytes)
        self._evict_others({facts.digest} | self._slots.unfinished)

    def _evict_others(self, kept: Set[str]) -> None:
        if self._limits.allow(len(self._in_memory), self._num_bytes):
            return
        for other in [each for each in self._in_memory if each not in kept]:
            if self._limits.allow(len(self._in_memory), self._num_bytes):
                break
            self._num_bytes -= self._in_memory.pop(other).num_bytes
            self._names.pop(other, None)
            self._slots.forget_size(other)
            self._executor.drop_adapter(other)
            self._counts.evictions_total += 1
