"""Adapters in routing decisions: engines that have one in memory, over a simulated fleet."""

import random
from collections import deque

import pytest

from rayinfer.kv_cache.adapter_id import adapter_id
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.adapters.adapter_residency import EXPECT_S, AdapterResidency
from rayinfer.routing.engine_choice import Candidate, EngineLoad, RequestCost, choose, cost_of
from rayinfer.routing.engine_set import EngineSet
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.polling import until

COST = RequestCost(0, 1, 40, 20)
NUM_ENGINES, NUM_IN_MEMORY, NUM_IN_FLIGHT = 4, 8, 12


class SimulatedFleet:
    """Engines that keep the adapters used last in memory, with a fixed number of requests in flight."""

    def __init__(self, *, looks_at_memory: bool) -> None:
        self.loads = {f"engine-{number}": EngineLoad() for number in range(NUM_ENGINES)}
        self.num_requests = dict.fromkeys(self.loads, 0)
        self.num_read = 0  # adapters, from files
        self._memory: dict[str, dict[str, None]] = {name: {} for name in self.loads}
        self._residency = AdapterResidency() if looks_at_memory else None
        self._in_flight: deque[str] = deque()

    def send(self, adapter: str) -> None:
        chosen = choose([self._candidate(name, adapter) for name in self.loads]).name
        self.loads[chosen].add(COST)
        self.num_requests[chosen] += 1
        self.loads[chosen].last_chosen = sum(self.num_requests.values())
        self._read(chosen, adapter)
        self._in_flight.append(chosen)
        if len(self._in_flight) > NUM_IN_FLIGHT:
            self.loads[self._in_flight.popleft()].remove(COST, is_prefilled=False)

    def _candidate(self, name: str, adapter: str) -> Candidate:
        has_adapter = self._residency is None or self._residency.has(name, adapter)
        return Candidate(name, self.loads[name], 0, 0, has_adapter)

    def _read(self, name: str, adapter: str) -> None:
        memory = self._memory[name]
        self.num_read += adapter not in memory
        memory.pop(adapter, None)
        memory[adapter] = None
        if len(memory) > NUM_IN_MEMORY:
            del memory[next(iter(memory))]
        if self._residency is not None:
            self._residency.update(name, list(memory))


def simulated(*, looks_at_memory: bool, num_adapters: int) -> SimulatedFleet:
    fleet, drawn = SimulatedFleet(looks_at_memory=looks_at_memory), random.Random(7)
    for _ in range(2000):
        fleet.send(str(drawn.randrange(num_adapters)))
    return fleet


def test_a_fleet_reads_a_fraction_of_the_adapters_where_memory_counts():
    with_it = simulated(looks_at_memory=True, num_adapters=24)
    without = simulated(looks_at_memory=False, num_adapters=24)
    assert with_it.num_read < without.num_read / 3
    assert max(with_it.num_requests.values()) < 2 * 2000 / NUM_ENGINES


def test_a_popular_adapter_does_not_stay_on_one_engine():
    fleet = simulated(looks_at_memory=True, num_adapters=1)
    assert min(fleet.num_requests.values()) > 0


def test_an_adapter_counts_as_read_soon_after_its_first_request():
    now = 0.0
    residency = AdapterResidency(lambda: now)
    residency.expect("a", "digest")
    assert residency.has("a", "digest")
    assert not residency.has("b", "digest")
    now = EXPECT_S + 1
    assert not residency.has("a", "digest")


def test_a_report_replaces_the_one_before_and_leaves_with_its_engine():
    residency = AdapterResidency()
    residency.update("a", ["x", "y"])
    residency.update("a", ["y"])
    assert [residency.has("a", digest) for digest in "xy"] == [False, True]
    residency.remove_engine("a")
    assert not residency.has("a", "y")


@pytest.mark.parametrize("resident", [0, 1])
async def test_a_request_goes_to_the_engine_that_reports_its_adapter(resident):
    engines = EngineSet("m", ServiceMetrics(), router_id="r", on_trace=lambda *_: None)
    clients = [FakeEngineClient() for _ in range(2)]
    for number, client in enumerate(clients):
        engines.add(f"engine-{number}", client, client.description)
    clients[resident].say(stats=EngineStats(adapters_in_memory=["digest"]))
    await until(lambda: engines.residency.has(f"engine-{resident}", "digest"))
    request = GenerationRequest(
        request_id="a",
        prompt_token_ids=[1] * 20,
        sampling_params=SamplingParams(max_tokens=4),
        adapter=adapter_id("sql", "digest"),
    )
    chosen = [engines.select_engine(cost_of(request), ()).link.name for _ in range(2)]
    assert chosen == [f"engine-{resident}"] * 2
    await engines.close()
