"""Adapters of an engine: those that are in memory, for requests that name them."""

from collections.abc import Mapping

from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.executor_commands import AdapterFacts
from rayinfer.engine.scheduling.request import Request
from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import digest_in


class EngineAdapters:
    """Adapters by digest; `max_in_memory` stay in host memory, and more while unfinished `requests` have them."""

    def __init__(self, executor: Executor, max_in_memory: int, requests: Mapping[str, Request]) -> None:
        self._executor, self._max_in_memory, self._requests = executor, max_in_memory, requests
        self._in_memory: dict[str, None] = {}  # the least recently used first
        self.num_loaded = 0  # so far, from files

    @property
    def in_memory(self) -> list[str]:
        """The digests of those that no request has to wait for, the least recently used first."""
        return list(self._in_memory)

    def load(self, folder: str) -> AdapterFacts:
        """Read an adapter; raises AdapterRefused."""
        facts = self._executor.load_adapter(folder)
        self.num_loaded += 1
        self._touch(facts.digest)
        return facts

    def use(self, adapter_id: str, folder: str) -> str:
        """Bring a request's adapter to memory and return its digest; raises AdapterRefused where that cannot be."""
        digest = digest_in(adapter_id)
        if digest in self._in_memory:
            self._touch(digest)
        elif self.load(folder).digest != digest:
            raise AdapterRefused(f"{folder} has changed since adapter {adapter_id} was loaded: load it again")
        return digest

    def _touch(self, digest: str) -> None:
        """Make this one the last to be evicted, and evict what is too much and not in use."""
        self._in_memory.pop(digest, None)
        self._in_memory[digest] = None
        if len(self._in_memory) <= self._max_in_memory:
            return
        kept = {digest, *(request.adapter for request in self._requests.values())}
        for other in [each for each in self._in_memory if each not in kept]:
            if len(self._in_memory) > self._max_in_memory:
                del self._in_memory[other]
                self._executor.drop_adapter(other)
