"""TTFT of urgent requests among many of low priority, and the shares of priorities and tenants."""

import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayinfer.benchmark.studies.routing.fleet import Fleet, RequestResult, open_fleet
from rayinfer.routing.limits import RouterLimits, TenantLimits

BACKGROUND, URGENT = 5, 0
NUM_ENGINES = 2
NUM_ROWS = 4  # of each engine, where priorities are measured
URGENT_LOAD = 0.9  # of all rows


@dataclass(frozen=True, kw_only=True, slots=True)
class UrgentArrival:
    """TTFT of requests that arrive while many wait, in seconds; medians of all arrivals."""

    num_background: int
    urgent_s: float
    worst_urgent_s: float
    first_come_s: float  # the same arrival with the priority of the waiting requests
    alone_s: float  # on an idle service
    p95_step_s: float
    worst_steps: int  # steps of the engine from the arrival there until the first token, of the worst arrival
    worst_steps_in_all: int  # likewise, from when it was sent
    first_come_steps: int  # likewise, with the priority of the waiting requests

    @property
    def limit_s(self) -> float:
        """Return the time of three steps and of its own prefill."""
        return 3 * self.p95_step_s + self.alone_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Tokens of two kinds of requests under overload."""

    tokens: dict[str, int]
    seconds: float

    def share(self, name: str) -> float:
        """Return the fraction of all tokens of one kind."""
        return self.tokens[name] / max(1, sum(self.tokens.values()))


async def urgent_arrivals(
    folder: Path,
    *,
    num_background: int = 50,
    num_arrivals: int = 5,
    lengths: tuple[int, int] = (64, 48),
    **settings: Any,
) -> UrgentArrival:
    """Measure urgent arrivals, one after the other, while low-priority requests occupy every row of every engine."""
    async with open_fleet(folder, NUM_ENGINES, RouterLimits(), max_num_seqs=NUM_ROWS, **settings) as fleet:
        draw = random.Random(0)
        alone = [(await _one(fleet, draw, lengths, URGENT)).ttft_s for _ in range(3)]
        fleet.forget_steps()
        found: dict[int, list[RequestResult]] = {}
        for priority in (BACKGROUND, URGENT):
            background = [asyncio.ensure_future(_one(fleet, draw, lengths, BACKGROUND)) for _ in range(num_background)]
            await asyncio.wait(background[: num_background // 10])
            count = num_arrivals if priority == URGENT else 1
            found[priority] = [await _one(fleet, draw, lengths, priority) for _ in range(count)]
            await asyncio.gather(*background)
        return UrgentArrival(
            num_background=num_background,
            urgent_s=statistics.median(result.ttft_s for result in found[URGENT]),
            worst_urgent_s=max(result.ttft_s for result in found[URGENT]),
            first_come_s=statistics.median(result.ttft_s for result in found[BACKGROUND]),
            alone_s=statistics.median(alone),
            p95_step_s=fleet.p95_step_s(),
            worst_steps=max(result.num_steps for result in found[URGENT]),
            worst_steps_in_all=max(result.num_steps_in_all for result in found[URGENT]),
            first_come_steps=found[BACKGROUND][0].num_steps_in_all,
        )


async def background_share(
    folder: Path, *, num_steps: int = 1000, lengths: tuple[int, int] = (64, 48), **settings: Any
) -> Shares:
    """Load 90 % of the engines' rows with urgent random arrivals, and count the tokens of low-priority requests.

    The clock is the engines' steps, so the load does not depend on the machine's speed.
    """
    async with open_fleet(folder, NUM_ENGINES, RouterLimits(), max_num_seqs=NUM_ROWS, **settings) as fleet:
        draw, gaps, started = random.Random(1), random.Random(23), time.perf_counter()
        # Arrivals in a step: a request has its row for as many steps as it has tokens, the first being its prompt's.
        rate = URGENT_LOAD * NUM_ENGINES * NUM_ROWS / lengths[1]
        tokens: Counter[str] = Counter(urgent=0, background=0)
        arrival, end = fleet.num_steps, fleet.num_steps + num_steps

        async def count(name: str, priority: int) -> None:
            result = await _one(fleet, draw, lengths, priority)
            if fleet.num_steps < end:
                tokens[name] += len(result.token_ids)

        async def keep_sending() -> None:
            while fleet.num_steps < end:
                await count("background", BACKGROUND)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_ENGINES * NUM_ROWS):
                tasks.create_task(keep_sending())
            while (arrival := arrival + gaps.expovariate(rate)) < end:
                await fleet.reach(arrival)
                tasks.create_task(count("urgent", URGENT))
        return Shares(tokens=dict(tokens), seconds=time.perf_counter() - started)


async def tenant_shares(
    folder: Path,
    *,
    weight: float = 3.0,
    num_clients: int = 12,
    num_requests: int = 200,
    lengths: tuple[int, int] = (32, 32),
    **settings: Any,
) -> Shares:
    """Overload the engines with two tenants, one of larger weight, and count the tokens of each."""
    limits = RouterLimits(tenants={"large": TenantLimits(weight=weight)})
    async with open_fleet(folder, NUM_ENGINES, limits, max_num_seqs=2, **settings) as fleet:
        draw, tokens, started = random.Random(2), Counter(large=0, small=0), time.perf_counter()
        num_finished = 0

        async def keep_sending(tenant: str) -> None:
            nonlocal num_finished
            while num_finished < num_requests:
                result = await _one(fleet, draw, lengths, 0, tenant=tenant)
                if num_finished < num_requests:
                    tokens[tenant] += len(result.token_ids)
                num_finished += 1

        await asyncio.gather(*(keep_sending(tenant) for tenant in ("large", "small") for _ in range(num_clients)))
        return Shares(tokens=dict(tokens), seconds=time.perf_counter() - started)


async def _one(
    fleet: Fleet, draw: random.Random, lengths: tuple[int, int], priority: int, tenant: str = ""
) -> RequestResult:
    prompt = [draw.randrange(3, 256) for _ in range(lengths[0])]
    return await fleet.ask(prompt, lengths[1], priority=priority, tenant=tenant)
