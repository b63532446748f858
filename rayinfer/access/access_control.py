"""Access of clients in one router: keys, limits and usage, synchronized with their owner."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rayinfer.access.api_key import ApiKey, parse_key
from rayinfer.access.authenticator import Authenticator
from rayinfer.access.caller import Caller
from rayinfer.access.generation_usage import EngineClock, EngineLoad, GenerationUsage
from rayinfer.access.key_table import KeyTable
from rayinfer.access.owner_messages import NamedUsage, OwnerUpdate, RouterReport, SharedState
from rayinfer.access.rate_limits import Holding, RateLimits, RequestSize
from rayinfer.access.usage import Usage, UsageKey, UsageRow, UsageSums, day_of
from rayinfer.errors import Unavailable

SYNC_S = 0.25  # a revoked key fails within a second everywhere
SYNC_TIMEOUT_S = 5.0
AWAY_S = 2.0  # without the owner, after which a router keeps to its own share of the limits
RETRY_S = 0.5

logger = logging.getLogger(__name__)


class AccessControl:
    """Keys, limits and usage of one router.

    While the owner is away the last known keys apply, and each limit is divided among the routers.
    """

    def __init__(
        self,
        router: str,
        shared: SharedState,
        *,
        engine_load: Callable[[str], EngineLoad] = lambda _: EngineLoad(1, 0),
        on_keys: Callable[[KeyTable], None] = lambda _: None,
        on_key_error: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = RateLimits(self._key_of, clock)
        self.authenticator = Authenticator(self.limits)
        self.is_loaded = asyncio.Event()
        self.key_error = ""  # what is wrong with the key file, while the last keys apply
        self._router = router
        self._shared = shared
        self._engine_load = engine_load
        self._on_keys = on_keys
        self._on_key_error = on_key_error
        self._clock = clock
        self._clocks: dict[str, EngineClock] = {}  # by model
        self.running: dict[GenerationUsage, Holding] = {}  # in flight
        self._sums = UsageSums()
        self._sequence = 0
        self._batch: Sequence[UsageRow] = ()  # sent, and not yet acknowledged
        self._owner, self._seen, self._revision = "", 0, ""
        self._routers: frozenset[str] = frozenset()
        self._synced_s, self._is_away = clock(), False

    @contextmanager
    def admit(
        self,
        caller: Caller,
        model: str,
        prompts: Sequence[Sequence[int]],
        *,
        num_choices: int = 1,
        max_tokens: int = 0,
        generates: bool = True,
    ) -> Iterator[GenerationUsage]:
        """Count a generation while it runs; raises RateLimited or QuotaExceeded at its begin.

        `max_tokens` are those of each choice that are reserved; 0 where the length is not known. What generates
        nothing takes one place, however many prompts it has.
        """
        num_sequences = num_choices * len(prompts) if generates else 1
        size = RequestSize(num_sequences, sum(map(len, prompts)), num_sequences * max_tokens)
        with self._holding(caller, size) as holding:
            engines = self._clocks.get(model)
            if engines is None:
                engines = self._clocks[model] = EngineClock(self._clock)
            usage = GenerationUsage(caller.key_id, model, prompts, engines)
            self.running[usage] = holding
            try:
                yield usage
            finally:
                del self.running[usage]
                self._count(usage, usage.end(), day_of())

    @contextmanager
    def admit_inference(self, caller: Caller, model: str) -> Iterator[None]:
        """Count an inference without tokens, on a model that needs no engine; raises RateLimited at its begin."""
        with self._holding(caller, RequestSize()):
            self._sums.add(UsageKey(day_of(), caller.key_id, model), Usage(requests=1))
            yield

    async def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Return the usage since a day, of one key or of all; raises Unavailable while the owner is away."""
        try:
            return await asyncio.wait_for(self._shared.usage(first_day, key_id), SYNC_TIMEOUT_S)
        except Exception as error:
            raise Unavailable("The usage cannot be read now.") from error

    async def follow(self) -> None:
        """Synchronize with the owner until cancelled."""
        while True:
            started_s = self._clock()
            try:
                await self.synchronize()
            except Exception as error:
                if not self._is_away:
                    logger.warning("the owner of keys and usage does not answer: %s", error)
                self._is_away = True
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(max(0.0, SYNC_S - (self._clock() - started_s)))

    async def synchronize(self) -> None:
        """Report what is new and apply what the owner knows; raises what the call raises."""
        self._collect()
        is_late = self._clock() - self._synced_s > AWAY_S  # the owner may have forgotten this router
        changed, self.limits.changed = self.limits.changed, set()
        last_used_s, self.authenticator.last_used_s = self.authenticator.last_used_s, {}
        if not self._batch:
            self._batch = self._sums.take()
            self._sequence += bool(self._batch)
        report = RouterReport(
            router=self._router,
            sequence=self._sequence,
            usage=self._batch,
            last_used_s=last_used_s,
            totals=self.limits.totals(None if is_late else changed),
            owner=self._owner,
            seen=self._seen,
            keys_revision=self._revision,
        )
        try:
            update = await asyncio.wait_for(self._shared.sync(report), SYNC_TIMEOUT_S)
            await self._apply_keys(update)
        except BaseException:
            self.limits.changed |= changed
            self.authenticator.last_used_s = last_used_s | self.authenticator.last_used_s
            if self._clock() - self._synced_s > AWAY_S:
                self.limits.share = 1.0 / max(1, len(self._routers))
            raise
        self._apply_totals(update)

    async def _apply_keys(self, update: OwnerUpdate) -> None:
        if update.key_error != self.key_error:
            self.key_error = update.key_error
            self._on_key_error(self.key_error)
        if not update.has_keys:
            return
        keys = self.authenticator.keys
        if keys is None or update.keys_revision != self._revision:
            # Thousands of keys take a while to read; tokens of streams should not wait for it.
            added = await asyncio.to_thread(lambda: [parse_key(line) for line in update.added_keys])
            known = KeyTable() if keys is None or update.has_all_keys else keys
            table = await asyncio.to_thread(known.changed, added, update.removed_keys)
            self.authenticator.keys = table
            self._revision = update.keys_revision
            self.limits.forget_keys(table.by_id.__contains__)
            self._on_keys(table)
            self.is_loaded.set()

    def _apply_totals(self, update: OwnerUpdate) -> None:
        is_first = not self._owner
        for router, totals in update.totals.items():
            self.limits.take_over(router, totals, is_first=is_first)
        routers = frozenset(update.routers)
        for gone in self._routers - routers:
            self.limits.forget_router(gone)
        reported: dict[str, int] = {}
        for row in self._batch:
            reported[row.key.key_id] = reported.get(row.key.key_id, 0) + row.usage.output_tokens
        self.limits.set_output_today(update.day, update.output_tokens, reported)
        if update.owner != self._owner:
            self.limits.changed.update(self.limits.totals())  # a new owner knows none
        self._batch, self._routers = (), routers
        self._owner, self._seen = update.owner, update.seen
        self._synced_s, self._is_away = self._clock(), False
        self.limits.share = 1.0

    def _collect(self) -> None:
        """Count what the running generations have got since the last time."""
        for model, engines in self._clocks.items():
            if engines.num_running:
                engines.read()
                engines.load = self._engine_load(model)
        day = day_of()
        for usage, holding in self.running.items():
            new = usage.take_new()
            self._count(usage, new, day)
            holding.use(new.output_tokens)

    def _count(self, usage: GenerationUsage, new: Usage, day: str) -> None:
        self._sums.add(UsageKey(day, usage.key_id, usage.model), new)
        self.limits.count_output(usage.key_id, new.output_tokens)

    def _holding(self, caller: Caller, size: RequestSize) -> AbstractContextManager[Holding]:
        return nullcontext(Holding()) if caller.key is None else self.limits.admit_generation(caller.key, size)

    def _key_of(self, key_id: str) -> ApiKey | None:
        keys = self.authenticator.keys
        return None if keys is None else keys.by_id.get(key_id)
