"""The engines of one model that a router knows: who takes requests, who leaves, and who waits for one."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rayinfer.errors import EngineDead, EngineLeaving, NotReady
from rayinfer.metrics import ServiceMetrics
from rayinfer.outputs import EngineStats, TraceEvent
from rayinfer.protocols import EngineClient, ModelDescription
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.replica_choice import least_loaded

logger = logging.getLogger(__name__)

RUNNING = "running"  # the one state of an engine in which requests do not just wait


class EngineSet:
    """Engines come and go at any time; whoever waits for one is woken by each change."""

    def __init__(
        self,
        model_name: str,
        metrics: ServiceMetrics,
        *,
        router_id: str,
        on_trace: Callable[[str, list[TraceEvent]], None],
    ) -> None:
        self.links: dict[str, EngineLink] = {}
        self._model_name = model_name
        self._metrics = metrics
        self._router_id = router_id
        self._on_trace = on_trace
        self._why_not_ready = "no engine is ready yet"
        self._num_chosen = 0
        self._num_added = 0
        self._changed = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """The engines that are listened to, those that leave included."""
        return list(self.links)

    def add(self, name: str, client: EngineClient, description: ModelDescription) -> None:
        """Listen to an engine and give it requests from now on; those that leave hand their streams over to it."""
        self._num_added += 1
        link = EngineLink(
            name,
            client,
            description,
            # An engine that is taken back must not confuse the new line with the end of the old one.
            router_id=f"{self._router_id}/{self._num_added}",
            on_stats=self._record_stats,
            on_lost=self.remove,
            on_trace=self._on_trace,
            is_replaceable=lambda: any(other.name != name for other in self.available()),
        )
        self.links[name] = link
        self._record_stats(name, link.stats)
        for other in list(self.links.values()):
            if other.is_draining:
                self._hand_over(other)
        self._tell_of_change()

    def drain(self, name: str) -> None:
        """Give the engine nothing more; its streams go on elsewhere, or end there if there is no other."""
        if link := self.links.get(name):
            link.is_draining = True
            self._why_not_ready = "an engine is shutting down"
            if link.num_in_flight == 0:
                self.remove(name, "it was drained")
            else:
                self._hand_over(link)

    def remove(self, name: str, reason: str) -> None:
        """Forget an engine; the streams that it still ran hear EngineDead."""
        link = self.links.pop(name, None)
        if link is None:
            return
        logger.log(logging.INFO if link.is_draining else logging.WARNING, "engine %s is gone: %s", name, reason)
        self._why_not_ready = "an engine is gone"
        self._metrics.drop_engine(self._model_name, name)
        link.fail(EngineDead("the engine that ran the request is gone"))
        self._tell_of_change()

    async def close(self) -> None:
        """Let go of every engine, which aborts all that still runs."""
        links = list(self.links.values())
        for link in links:
            self.remove(link.name, "the service is shutting down")
        await asyncio.gather(*(link.wait_closed() for link in links))

    def available(self) -> list[EngineLink]:
        """List the engines that do not leave."""
        return [link for link in self.links.values() if not link.is_draining]

    def not_ready_message(self) -> str:
        """Say why no engine can take a request."""
        return f"model {self._model_name!r} cannot answer now: {self._why_not_ready}"

    def describe(self) -> ModelDescription:
        """Say what the model is, as the tightest of its engines has it; raises NotReady without engines."""
        if not (links := self.available()):
            raise NotReady(self.not_ready_message())
        tightest = min((link.description for link in links), key=lambda known: known.max_model_len)
        return replace(tightest, name=self._model_name)

    async def choose(self, wait_s: float = 0.0) -> EngineLink:
        """Find the least loaded engine that does not leave; raises NotReady when there is none for so long."""
        latest = time.monotonic() + wait_s
        while not (links := self.available()):
            await self._wait_for_change(latest - time.monotonic())
        links = [link for link in links if link.stats.state == RUNNING] or links
        load = least_loaded([link.load for link in links])
        self._num_chosen += 1
        load.last_chosen = self._num_chosen
        return self.links[load.name]

    def _hand_over(self, link: EngineLink) -> None:
        """Let the streams of an engine that leaves go on elsewhere, if there is such a place."""
        if self.available():
            link.hand_over(EngineLeaving("the engine that ran the request is leaving"))

    async def _wait_for_change(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._changed.wait()
        except TimeoutError:
            raise NotReady(self.not_ready_message()) from None

    def _tell_of_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _record_stats(self, name: str, stats: EngineStats) -> None:
        self._metrics.set_engine_stats(self._model_name, name, stats)
        link = self.links.get(name)
        if link is not None and link.is_draining and link.num_in_flight == 0:
            self.remove(name, "it was drained")
