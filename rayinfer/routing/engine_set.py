"""A router's set of one model's engines: available and draining ones, and the choice between them."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rayinfer.errors import EngineDead, EngineLeaving, ModelFilesGone, NotReady
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineState, StepMessage, TraceEvent
from rayinfer.predictions import PredictorDescription
from rayinfer.protocols import EngineClient, KVAddress, KVSource, ModelDescription
from rayinfer.routing.adapters.adapter_residency import AdapterResidency
from rayinfer.routing.engine_choice import (
    WORTH_OF_STORED,
    Candidate,
    RequestCost,
    choose,
    less_cached,
    reason_of,
)
from rayinfer.routing.engine_link import EngineLink
from rayinfer.routing.prefix_index import PrefixIndex
from rayinfer.routing.roles.advice import RoleAdvisor
from rayinfer.routing.roles.kv_sources import find_source, handover_source
from rayinfer.routing.roles.settings import RoleSettings, of_fitting_role, prefill_engines

logger = logging.getLogger(__name__)

ADVICE_INTERVAL_S = 15.0


class RoutingDecision(NamedTuple):
    """The routing decision for a request: an engine, and the reason."""

    link: EngineLink
    num_cached_tokens: int  # of its prompt that the engine should have
    reason: str  # only, prefix or load
    source: KVSource | None = None  # from which it may fetch more of it
    is_prefill: bool = False  # whether the stream leaves the engine with its first token


class EngineSet:
    """Engines that come and go at any time; each change wakes the requests that wait for an engine.

    `capacity_listeners` are called whenever an engine may have gained capacity: with its name, or None where it may be
    any. `join_listeners` are called with each engine that is added, before it gets any request.
    With `may_be_empty` the model's description stays known while it has no engine. `find_missing_files` returns what a
    new engine would not find, and is called where there is none: nothing is waited for then.
    """

    def __init__(
        self,
        model_name: str,
        metrics: ServiceMetrics,
        *,
        router_id: str,
        on_trace: Callable[[str, list[TraceEvent]], None],
        may_be_empty: bool = False,
        liveness: LivenessLimits = DEFAULT_LIMITS,
        roles: RoleSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.links: dict[str, EngineLink] = {}
        self.prefixes = PrefixIndex(clock)
        self.residency = AdapterResidency(clock)
        self.capacity_listeners: list[Callable[[str | None], None]] = []
        self.join_listeners: list[Callable[[EngineLink], None]] = []
        self.find_missing_files: Callable[[], str] = lambda: ""
        self.may_be_empty = may_be_empty
        self._model_name = model_name
        self._metrics = metrics
        self._router_id = router_id
        self._on_trace = on_trace
        self._liveness = liveness
        self._num_waiting = 0
        self._available: list[EngineLink] = []
        self._roles = roles
        self._advisor = RoleAdvisor(clock)
        self._advise_at = clock() + ADVICE_INTERVAL_S
        self._clock = clock
        self._prefill_names: frozenset[str] = frozenset()
        self.without_engines_since: float | None = -math.inf  # seconds of the loop; None with an engine
        self._description: ModelDescription | None = None
        self._num_cache_tokens = 0
        self._weights_version = 0
        self._not_ready_reason = "no engine is ready yet"
        self._num_chosen = 0
        self._num_added = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def names(self) -> list[str]:
        """The connected engines, draining ones included."""
        return list(self.links)

    def add(
        self,
        name: str,
        client: EngineClient,
        description: ModelDescription,
        kv_address: KVAddress | None = None,
    ) -> None:
        """Connect to an engine and route requests to it from now on; streams of draining engines migrate to it."""
        self._num_added += 1
        link = EngineLink(
            name,
            client,
            description,
            # A new connection to a known engine must not be confused with the end of the old one.
            router_id=f"{self._router_id}/{self._num_added}",
            on_message=self._note_message,
            on_lost=self.remove,
            on_trace=self._on_trace,
            is_replaceable=lambda: any(other.name != name for other in self.available()),
            kv_address=kv_address,
            advisor=self._advisor,
            limits=self._liveness,
        )
        self.links[name] = link
        for listener in self.join_listeners:
            listener(link)
        self._update_members()
        self.prefixes.add_engine(name, description.kv_store)
        self._metrics.set_engine_stats(self._model_name, name, link.stats)
        self._metrics.set_engine_config(self._model_name, name, description.cache_config)
        for other in list(self.links.values()):
            if other.is_draining:
                self._migrate_streams(other)
        self._notify_change()

    def drain(self, name: str) -> None:
        """Route nothing more to the engine; its streams migrate, or end there if there is no other engine."""
        if link := self.links.get(name):
            link.is_draining = True
            self._update_members()
            self._not_ready_reason = "an engine is shutting down"
            if link.num_in_flight == 0:
                self.remove(name, "it was drained")
            else:
                self._migrate_streams(link)

    def remove(self, name: str, reason: str) -> None:
        """Remove an engine; the streams that it still ran get EngineDead."""
        link = self.links.pop(name, None)
        if link is None:
            return
        self._update_members()
        logger.log(logging.INFO if link.is_draining else logging.WARNING, "engine %s is gone: %s", name, reason)
        self._not_ready_reason = "an engine is gone"
        self.prefixes.remove_engine(name)
        self.residency.remove_engine(name)
        self._metrics.drop_engine(self._model_name, name)
        if not (link.is_draining or self._is_closed):
            self._metrics.engine_lost(self._model_name)
        link.fail(EngineDead("the engine that ran the request is gone"))
        self._notify_change()

    async def close(self) -> None:
        """Close the links to all engines, which aborts all running requests; no request waits for others."""
        self._is_closed = True
        links = list(self.links.values())
        for link in links:
            self.remove(link.name, "the service is shutting down")
        self._notify_change()
        await asyncio.gather(*(link.wait_closed() for link in links))

    def available(self) -> list[EngineLink]:
        """List the engines that are not draining."""
        return self._available

    @property
    def is_starting(self) -> bool:
        """Whether there is no engine, and requests wait for one to start."""
        return self.may_be_empty and not self._available

    @property
    def is_described(self) -> bool:
        """Whether the model's description is known."""
        return self._description is not None

    @property
    def is_waited_for(self) -> bool:
        """Whether a stream that lost its engine waits for another."""
        return self._num_waiting > 0

    def not_ready(self) -> NotReady:
        """Return why no engine can take a request: a ModelFilesGone where none can be started either."""
        if missing := self.find_missing_files():
            return ModelFilesGone(f"model {self._model_name!r} cannot answer, and no engine can start: {missing}")
        return NotReady(f"model {self._model_name!r} cannot answer now: {self._not_ready_reason}")

    def describe(self) -> ModelDescription:
        """Describe the model, with the limits of its tightest engine; raises NotReady without engines."""
        if self._description is None:
            raise self.not_ready()
        return self._description

    @property
    def block_size(self) -> int:
        """Tokens per block, as routers and engines hash them; engines with another size never match."""
        return next((link.description.block_size for link in self.links.values()), 16)

    @property
    def weights_version(self) -> int:
        """Weight version of the newest engines; during an update, prefixes of older versions never match."""
        return self._weights_version

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that the caches of all engines hold."""
        return self._num_cache_tokens

    def select_engine(
        self,
        cost: RequestCost,
        block_hashes: Sequence[bytes],
        *,
        among: str | None = None,
        ignore_credits: bool = False,
        continues: bool = False,
    ) -> RoutingDecision | None:
        """Select the engine that will be the first to have computed this prompt, among those with enough credits.

        None when none has; with `ignore_credits`, only when there is no engine. Engines that are paused or asleep count
        where there are no others. `among` restricts the choice to one engine. With roles, engines of the fitting
        one come first: a stream that `continues` has tokens already, and is for decode engines.
        """
        candidates = []
        for link in self._eligible(among):
            if not ignore_credits and link.load.is_full(cost.priority, link.stats.credits):
                continue  # under overload that is nearly every engine: its prefixes need no look-up
            num_cached = self._num_cached_tokens(link, block_hashes) if block_hashes else 0
            if ignore_credits or link.load.has_credits(less_cached(cost, num_cached), link.stats.credits):
                num_blocks = self.prefixes.num_blocks(link.name)
                has_adapter = cost.adapter is None or self.residency.has(link.name, cost.adapter)
                candidates.append(Candidate(link.name, link.load, num_cached, num_blocks, has_adapter))
        if not candidates:
            return None
        fitting = of_fitting_role(candidates, cost, self._prefill_names, self._roles, continues=continues)
        chosen = choose(fitting)
        source = self._find_source(self.links[chosen.name], block_hashes)
        link = self._note_choice(chosen, block_hashes)
        if cost.adapter is not None:
            self.residency.expect(chosen.name, cost.adapter)
        return RoutingDecision(
            link,
            chosen.num_cached_tokens,
            reason_of(chosen, fitting),
            source,
            chosen.name in self._prefill_names,
        )

    def select_handover(
        self, prefill: EngineLink, cost: RequestCost, block_hashes: Sequence[bytes]
    ) -> RoutingDecision | None:
        """Select the decode engine that continues a stream whose prompt a prefill engine has computed.

        None where none has credits: the stream stays.
        """
        candidates = []
        for link in self._eligible(None):
            source = handover_source(prefill, link, len(block_hashes))
            if source is None or link is prefill or link.name in self._prefill_names:
                continue
            num_cached = len(block_hashes) * link.description.block_size
            if link.load.has_credits(less_cached(cost, num_cached), link.stats.credits):
                candidates.append(Candidate(link.name, link.load, num_cached, self.prefixes.num_blocks(link.name)))
        if not candidates:
            return None
        chosen = choose(candidates)
        link = self._note_choice(chosen, block_hashes)
        source = handover_source(prefill, link, len(block_hashes))
        return RoutingDecision(link, chosen.num_cached_tokens, "role", source)

    async def wait_for_engine(
        self, cost: RequestCost, block_hashes: Sequence[bytes], wait_s: float, *, continues: bool = False
    ) -> RoutingDecision:
        """Select the best engine, whatever its credits; raises NotReady when there is none for so long."""
        latest = time.monotonic() + wait_s
        while (decision := self.select_engine(cost, block_hashes, ignore_credits=True, continues=continues)) is None:
            await self._wait_for_change(latest - time.monotonic())
        return decision

    async def wait_for_any(self, wait_s: float) -> None:
        """Wait until there is an engine; raises NotReady when there is none for so long."""
        latest = time.monotonic() + wait_s
        while not self.available():
            await self._wait_for_change(latest - time.monotonic())

    def _eligible(self, among: str | None) -> list[EngineLink]:
        engines = self._available if among is None else [link for link in self._available if link.name == among]
        running = [link for link in engines if link.stats.state == EngineState.RUNNING]
        if running or any(link.stats.state == EngineState.RUNNING for link in self._available):
            return running
        return engines

    def _note_choice(self, chosen: Candidate, block_hashes: Sequence[bytes]) -> EngineLink:
        self._num_chosen += 1
        chosen.load.last_chosen = self._num_chosen
        self.prefixes.expect(chosen.name, block_hashes)
        return self.links[chosen.name]

    def _find_source(self, link: EngineLink, block_hashes: Sequence[bytes]) -> KVSource | None:
        if link.kv_address is None or not block_hashes:
            return None
        num_held = self._num_held(link, block_hashes)
        return find_source(link, num_held, self.links.values(), lambda other: self._num_held(other, block_hashes))

    def _num_held(self, link: EngineLink, block_hashes: Sequence[bytes]) -> int:
        """Return how many tokens the engine or its machine's store have."""
        prefixes = self.prefixes
        held = max(prefixes.num_cached(link.name, block_hashes), prefixes.num_in_store(link.name, block_hashes))
        return held * link.description.block_size

    def _num_cached_tokens(self, link: EngineLink, block_hashes: Sequence[bytes]) -> int:
        """Return how many tokens the engine need not compute; those that it has to load count less."""
        num_cached = self.prefixes.num_cached(link.name, block_hashes)
        num_to_load = max(0, self.prefixes.num_in_store(link.name, block_hashes) - num_cached)
        return int((num_cached + WORTH_OF_STORED * num_to_load) * link.description.block_size)

    def _migrate_streams(self, link: EngineLink) -> None:
        """Migrate the streams of a draining engine, if there is another engine."""
        if self.available():
            link.migrate(EngineLeaving("the engine that ran the request is leaving"))

    async def _wait_for_change(self, wait_s: float) -> None:
        error = self.not_ready()
        if self._is_closed or isinstance(error, ModelFilesGone):
            raise error
        self._num_waiting += 1
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._changed.wait()
        except TimeoutError:
            raise self.not_ready() from None
        finally:
            self._num_waiting -= 1

    def _update_members(self) -> None:
        """Compute what depends on the members once per change: every request needs it."""
        self._available = [link for link in self.links.values() if not link.is_draining]
        with_blocks = [link.name for link in self._available if link.kv_address is not None]
        self._prefill_names = prefill_engines(with_blocks, self._roles)
        if self._available:
            self.without_engines_since = None
        elif self.without_engines_since is None:
            self.without_engines_since = asyncio.get_running_loop().time()
        known = [link.description for link in self._available]
        self._num_cache_tokens = sum(each.kv_blocks_total * each.block_size for each in known)
        self._weights_version = max((each.weights_version for each in known), default=0)
        tightest = min(known, key=lambda each: each.max_model_len, default=None)
        if tightest is not None:
            self._description = replace(tightest, name=self._model_name, predictor=_predictor_of(tightest, known))
        elif not self.may_be_empty:
            self._description = None

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._notify_capacity(None)

    def _notify_capacity(self, name: str | None) -> None:
        for listener in self.capacity_listeners:
            listener(name)

    def _note_message(self, name: str, message: StepMessage) -> None:
        self._metrics.set_engine_stats(self._model_name, name, message.stats)
        self.residency.update(name, message.stats.adapters_in_memory)
        if message.blocks_stored or message.blocks_removed:
            self.prefixes.update(name, message.blocks_stored, message.blocks_removed)
        link = self.links.get(name)
        if link is not None and link.is_draining and link.num_in_flight == 0:
            self.remove(name, "it was drained")
        if self._clock() >= self._advise_at:
            self._advise()
        self._notify_capacity(name)

    def _advise(self) -> None:
        """Report whether roles would help; where engines have some, or are one, there is nothing to advise."""
        self._advise_at = self._clock() + ADVICE_INTERVAL_S
        if self._roles is None and len(self._available) > 1:
            advice = self._advisor.advise(len(self._available), self.describe().max_num_seqs)
            self._metrics.set_role_advice(self._model_name, advice.num_prefill)


def _predictor_of(tightest: ModelDescription, known: Sequence[ModelDescription]) -> PredictorDescription | None:
    """Describe the predictor; its digest is unknown while engines differ, as any of them may answer."""
    digests = {each.predictor.digest for each in known if each.predictor is not None}
    if tightest.predictor is None or len(digests) == 1:
        return tightest.predictor
    return replace(tightest.predictor, digest="")
