import asyncio
import time
from dataclasses import replace

import pytest

from rayinfer.errors import EngineDead, NotReady, QueueFull, ShuttingDown
from rayinfer.outputs import Credits, EngineStats
from rayinfer.protocols import SharedStore
from rayinfer.routing.limits import RouterLimits, TenantLimits
from rayinfer.routing.prefix_index import EXPECT_S
from rayinfer.routing.preparation import hash_prompt_blocks
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.fake_service import Service, running
from support.fakes.virtual_time import FakeClock
from support.services.polling import until

ONE = Credits(num_requests=1)


class Narrow(Service):
    """Engines that grant so many credits; clients ask for one token each unless they say otherwise."""

    def __init__(self, tokenizer, num_engines=1, credits=ONE, engine_wait_s=5.0, **limits):
        super().__init__(tokenizer, num_engines, engine_wait_s=engine_wait_s)
        self.dispatcher.change_limits(RouterLimits(**{"max_waiting_tokens": 10**6} | limits))
        self.credits = credits
        self.tasks = {}

    async def grant(self):
        """Let every engine say what it grants."""
        for engine in self.engines:
            engine.say(stats=EngineStats(credits=self.credits))
        links = self.dispatcher.engines.links
        await until(lambda: all(link.stats.credits == self.credits for link in links.values()))

    async def ask(self, *names, **settings):
        """Let clients ask one after the other; whoever finds no room waits."""
        for name in names:
            self.tasks[name] = asyncio.ensure_future(self._read(name, {"max_tokens": 1} | settings))
            self.tasks[name].add_done_callback(lambda task: task.cancelled() or task.exception())  # some never end
            for _ in range(3):  # into the queue, or to the engine
                await asyncio.sleep(0)

    async def _read(self, name, settings):
        return [output async for output in self.open(name, **settings)]

    async def answer(self, name, engine=0):
        """Let an engine answer a request in full, and wait until all tasks have run."""
        client = self.engines[engine]
        client.say(
            client.delta(f"{name}/0", self.tokenizer.encode("x"), "length"), stats=EngineStats(credits=self.credits)
        )
        await self.tasks[name]

    async def order(self, count, engine=0):
        """Answer whatever comes, in the order in which it comes."""
        client, served = self.engines[engine], []
        while len(served) < count:
            await until(lambda: len(client.submitted) > len(served))
            name = client.submitted_ids[len(served)].partition("/")[0]
            served.append(name)
            await self.answer(name, engine)
        return served

    @property
    def num_queued(self):
        return self.metric('vllm:num_requests_waiting{engine="router"')


@pytest.fixture
async def narrow(tokenizer):
    async with running(Narrow(tokenizer)) as service:
        await service.grant()
        yield service


async def test_requests_wait_in_the_router_until_an_engine_has_credits(narrow):
    await narrow.ask("a", "b", "c")
    assert narrow.engines[0].submitted_ids == ["a/0"]
    assert narrow.num_queued == 2
    await narrow.answer("a")
    await until(lambda: narrow.engines[0].submitted_ids == ["a/0", "b/0"])
    assert narrow.num_queued == 1
    await narrow.answer("b")
    await narrow.answer("c")


async def test_waiting_requests_are_counted_by_tenant_and_priority(narrow):
    await narrow.ask("first")
    await narrow.ask("a", "b", tenant="alice")
    await narrow.ask("c", tenant="bob", priority=2)
    queued_by = narrow.metrics.queued_by("m")
    assert queued_by == {("alice", 0): 2, ("bob", 2): 1}
    narrow.tasks["a"].cancel()
    await until(lambda: queued_by == {("alice", 0): 1, ("bob", 2): 1})
    assert await narrow.order(3) == ["first", "b", "c"]
    assert queued_by == {}


async def test_the_urgent_go_first_and_the_others_in_order(narrow):
    await narrow.ask("runs", priority=-10)
    await narrow.ask("late", "later", priority=3)
    await narrow.ask("normal", "normal too")
    await narrow.ask("urgent", priority=-2)
    assert await narrow.order(6) == ["runs", "urgent", "normal", "normal too", "late", "later"]


async def test_an_urgent_request_does_not_wait_for_lower_priorities(narrow):
    await narrow.ask("runs", "waits", priority=5)
    await narrow.ask("urgent")
    assert narrow.engines[0].submitted_ids == ["runs/0", "urgent/0"]  # the engine lets it pass
    assert narrow.num_queued == 1


async def test_a_tenant_is_held_to_its_most_urgent_priority(tokenizer):
    tenants = {"slow": TenantLimits(most_urgent=2)}
    async with running(Narrow(tokenizer, tenants=tenants)) as service:
        await service.grant()
        await service.ask("slow", priority=-10, tenant="slow")
        assert service.engines[0].submitted[0].priority == 2


async def test_a_request_that_leaves_the_queue_is_not_sent(narrow):
    await narrow.ask("a", "leaves", "stays")
    narrow.tasks["leaves"].cancel()
    await narrow.answer("a")
    await until(lambda: len(narrow.engines[0].submitted) == 2)
    assert narrow.engines[0].submitted_ids == ["a/0", "stays/0"]
    assert narrow.num_queued == 0


async def test_a_client_that_leaves_as_its_request_is_dispatched_has_it_aborted(narrow):
    await narrow.ask("a", "leaves")
    narrow.engines[0].say(stats=EngineStats(credits=Credits(num_requests=2)))
    (link,) = narrow.dispatcher.engines.links.values()
    await until(lambda: link.num_in_flight == 2)
    narrow.tasks["leaves"].cancel()  # before its task has resumed
    await until(lambda: narrow.engines[0].aborted == ["leaves/0"])
    assert link.num_in_flight == 1


async def test_a_dispatch_is_traced_at_the_time_of_its_decision(narrow):
    await narrow.ask("a")
    await narrow.ask("b", trace=True)
    narrow.engines[0].say(stats=EngineStats(credits=Credits(num_requests=2)))
    (link,) = narrow.dispatcher.engines.links.values()
    await until(lambda: link.num_in_flight == 2)
    sent_s = time.time()  # before its task has resumed
    (stored,) = narrow.traces.find("b")
    await until(lambda: len(stored.trace) == 2)
    received, dispatched = stored.trace.in_order()
    assert dispatched.name == "dispatched"
    assert received.time_s < dispatched.time_s < sent_s


async def test_a_deadline_can_pass_in_the_queue(narrow):
    await narrow.ask("a")
    await narrow.ask("late", timeout_s=0.05)
    (output,) = await narrow.tasks["late"]
    assert output.outputs[0].finish_reason == "timeout"
    assert narrow.engines[0].submitted_ids == ["a/0"]
    assert narrow.num_queued == 0


async def test_a_waiting_request_goes_to_the_next_engine(narrow):
    await narrow.ask("a", "waits")
    narrow.engines[0].die(EngineDead("gone"))
    await until(lambda: not narrow.dispatcher.engines.names)
    number = narrow.add_engine()
    await until(lambda: len(narrow.engines[number].submitted) == 2)
    assert set(narrow.engines[number].submitted_ids) == {"a/0@1", "waits/0"}


async def test_a_waiting_request_without_engines_is_rejected_in_the_end(tokenizer):
    async with running(Narrow(tokenizer, engine_wait_s=0.05)) as service:
        await service.grant()
        await service.ask("a", "waits")
        service.engines[0].die(EngineDead("gone"))
        with pytest.raises(NotReady):
            await service.tasks["waits"]
        with pytest.raises(EngineDead):
            await service.tasks["a"]
        assert service.num_queued == 0


async def test_all_engines_with_credits_are_used_before_a_request_waits(tokenizer):
    async with running(Narrow(tokenizer, 3)) as service:
        await service.grant()
        await service.ask("a", "b", "c", "d")
        assert [len(engine.submitted) for engine in service.engines] == [1, 1, 1]
        assert service.num_queued == 1


async def test_requests_that_share_a_prefix_are_dispatched_together(tokenizer):
    async with running(Narrow(tokenizer, credits=Credits(num_requests=3))) as service:
        await service.grant()
        await service.ask("first", "second", "third")
        red, blue = "r" * 40, "b" * 40
        for number in range(3):
            await service.ask(f"red {number}", prompt=red + str(number))
            await service.ask(f"blue {number}", prompt=blue + str(number))
        for name in ("first", "second", "third"):
            client = service.engines[0]
            client.say(client.delta(f"{name}/0", [5], "length"), stats=EngineStats(credits=Credits(num_requests=3)))
        await until(lambda: len(service.engines[0].submitted) == 6)
        assert {name[:3] for name in service.engines[0].submitted_ids[3:]} == {"red"}


async def test_grouping_can_be_switched_off_while_requests_wait(tokenizer):
    async with running(Narrow(tokenizer, group_by_prefix=False)) as service:
        await service.grant()
        await service.ask("first")
        for number in range(2):
            await service.ask(f"red {number}", prompt="r" * 40 + str(number))
            await service.ask(f"blue {number}", prompt="b" * 40 + str(number))
        assert await service.order(5) == ["first", "red 0", "blue 0", "red 1", "blue 1"]


@pytest.mark.parametrize(("weight", "share"), [(1.0, 20), (3.0, 30)])
async def test_tenants_get_their_shares_whoever_asks_more(tokenizer, weight, share):
    tenants = {"big": TenantLimits(weight=weight)}
    async with running(Narrow(tokenizer, tenants=tenants, max_waiting_requests=1000)) as service:
        await service.grant()
        for number in range(120):
            await service.ask(f"small {number}", tenant="small")
        for number in range(40):
            await service.ask(f"big {number}", tenant="big")
        served = await service.order(41)
        assert abs(sum(name.startswith("big") for name in served) - share) <= 2


async def test_a_tenant_is_charged_for_what_its_requests_turn_out_to_cost(tokenizer):
    """Two tenants whose requests all turn out alike, but one of them lets its requests say more than they do."""
    async with running(Narrow(tokenizer, max_waiting_requests=1000)) as service:
        await service.grant()
        for number in range(60):
            await service.ask(f"wordy {number}", tenant="wordy", max_tokens=40)
            await service.ask(f"terse {number}", tenant="terse", max_tokens=1)
        early = await service.order(30)
        assert sum(name.startswith("wordy") for name in early) < 10
        await service.order(110)
        for number in range(60, 120):  # what most of them turned out to cost is known by now
            await service.ask(f"wordy {number}", tenant="wordy", max_tokens=40)
            await service.ask(f"terse {number}", tenant="terse", max_tokens=1)
        late = (await service.order(160))[120:]
        assert sum(name.startswith("wordy") for name in late) > 7  # 4 if nothing were given back


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_waiting_requests": 1}, "1 requests are waiting already, the limit is 1"),
        ({"max_waiting_tokens": 20}, "requests of 9 tokens are waiting already and this one has 17, the limit is 20"),
        (
            {"tenants": {"t": TenantLimits(max_waiting_requests=1)}},
            "1 requests of this tenant are waiting already, the limit is 1",
        ),
        ({"other_tenants": TenantLimits(max_waiting_tokens=20)}, "requests of this tenant of 9 tokens are waiting"),
        ({"other_tenants": TenantLimits(max_waiting_requests=0)}, "0 requests of this tenant are waiting already"),
    ],
    ids=str,
)
async def test_more_than_may_wait_is_refused(narrow, limits, message):
    narrow.dispatcher.change_limits(RouterLimits(**limits))
    if "limit is 0" not in message and "0 requests" not in message:
        await narrow.ask("a", prompt="x" * 8, tenant="t")
    with pytest.raises(QueueFull, match=message) as refusal:
        await anext(narrow.open("b", prompt="x" * 16, tenant="t", max_tokens=1))
    assert refusal.value.retry_after_s >= 1


async def test_a_large_request_may_wait_alone(narrow):
    narrow.dispatcher.change_limits(RouterLimits(max_waiting_tokens=5))
    await narrow.ask("large", prompt="x" * 50)
    assert narrow.engines[0].submitted_ids == ["large/0"]


async def test_another_tenants_queue_is_no_reason_to_refuse(narrow):
    narrow.dispatcher.change_limits(RouterLimits(tenants={"t": TenantLimits(max_waiting_requests=1)}))
    await narrow.ask("a", tenant="t")
    await narrow.ask("b", tenant="u")
    assert narrow.num_queued == 1


async def test_admitted_requests_stay_when_limits_shrink(narrow):
    await narrow.ask("a", "b", "c")
    narrow.dispatcher.change_limits(RouterLimits(max_waiting_requests=1))
    with pytest.raises(QueueFull):
        await anext(narrow.open("d"))
    assert await narrow.order(3) == ["a", "b", "c"]


async def test_a_request_goes_where_most_of_its_prompt_is_cached(tokenizer):
    async with running(Service(tokenizer, 2)) as service:
        long = "once upon a time there was a king who had a castle"
        stream = await service.start("a", prompt=long)
        await stream.aclose()
        for number in range(3):
            stream = await service.start(f"b{number}", prompt=long + str(number), trace=True)
            await stream.aclose()
        assert len(service.engines[1].submitted) == 0
        dispatched = dict(service.trace("b0"))["dispatched"]
        assert (dispatched["engine"], dispatched["why"], dispatched["cached_tokens"]) == ("engine-0", "prefix", 48)
        service.dispatcher.change_limits(RouterLimits(route_by_prefix=False))
        stream = await service.start("c", engine=1, prompt=long)
        await stream.aclose()


async def test_reported_blocks_stored_and_removed_count(tokenizer):
    clock = FakeClock()
    async with running(Service(tokenizer, 2, clock=clock)) as service:
        prompt = "once upon a time there was a king who had a castle"
        await (await service.start("a", prompt=prompt)).aclose()
        engine = service.engines[0]
        stored = list(hash_prompt_blocks(engine.submitted[0], engine.description.block_size))
        clock.now += 2 * EXPECT_S
        service.engines[1].say(blocks_stored=stored)
        await until(lambda: service.dispatcher.engines.prefixes.num_blocks("engine-1") == len(stored))
        await (await service.start("b", engine=1, prompt=prompt)).aclose()
        clock.now += 2 * EXPECT_S
        service.engines[1].say(blocks_removed=stored)
        await until(lambda: service.dispatcher.engines.prefixes.num_blocks("engine-1") == 0)
        await (await service.start("c", engine=0, prompt=prompt)).aclose()


async def test_prefixes_in_a_machines_store_draw_requests_to_all_of_its_engines(tokenizer):
    clock = FakeClock()
    async with running(Service(tokenizer, 0, clock=clock)) as service:
        for store in ("elsewhere", "here", "here"):
            service.add_engine(kv_store=SharedStore(store, 1000))
        prompt = "once upon a time there was a king who had a castle"
        await (await service.start("a", engine=0, prompt=prompt)).aclose()
        stored = list(hash_prompt_blocks(service.engines[0].submitted[0], service.engines[0].description.block_size))
        service.engines[1].say(blocks_stored=stored)
        await until(lambda: service.dispatcher.engines.prefixes.num_blocks("engine-1") == len(stored))
        service.engines[1].say(blocks_removed=stored)
        service.dispatcher.engines.drain("engine-1")
        await until(lambda: service.dispatcher.engines.names == ["engine-0", "engine-2"])
        clock.now += 2 * EXPECT_S
        await (await service.start("c", engine=2, prompt="another")).aclose()
        stream = await service.start("b", engine=2, prompt=prompt, trace=True)  # though it is engine-0's turn
        await stream.aclose()
        dispatched = dict(service.trace("b"))["dispatched"]
        assert (dispatched["why"], dispatched["cached_tokens"]) == ("prefix", int(0.9 * 48))


async def test_a_prefix_member_without_credits_lets_the_first_in_order_go(tokenizer):
    async with running(Narrow(tokenizer, credits=Credits(num_requests=4))) as service:
        await service.grant()
        red = "r" * 40
        await service.ask("a", "b", "c", "d")
        await service.ask("leader", prompt=red + "1")
        await service.ask("plain")
        await service.ask("wide", prompt=red + "2", n=2)
        client = service.engines[0]
        for name in ("a", "b"):  # one row after the other: the leader's companion wants two at once
            client.say(client.delta(f"{name}/0", [5], "length"), stats=EngineStats(credits=Credits(num_requests=4)))
        await until(lambda: "plain/0" in client.submitted_ids)
        assert client.submitted_ids[4:6] == ["leader/0", "plain/0"]


async def test_a_new_engine_gets_no_more_than_it_can_take(tokenizer):
    async with running(Narrow(tokenizer)) as service:
        await service.grant()
        await service.ask(*(str(number) for number in range(12)))
        engine = FakeEngineClient()
        service.engines.append(engine)
        service.dispatcher.engines.add("new", engine, replace(engine.description, max_num_seqs=4))
        await until(lambda: engine.submitted)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(engine.submitted) == 5  # its rows, and one to spare


async def test_a_request_that_leaves_the_queue_is_not_charged(tokenizer):
    async with running(Narrow(tokenizer, max_waiting_requests=1000)) as service:
        await service.grant()
        await service.ask("runs", tenant="other")
        await service.ask("first of b", tenant="b")
        gone = [f"gone {number}" for number in range(20)]
        await service.ask(*gone, tenant="a", max_tokens=50)
        for name in gone:
            service.tasks[name].cancel()
        await asyncio.sleep(0)
        for number in range(10):
            await service.ask(f"a {number}", tenant="a")
            await service.ask(f"b {number}", tenant="b")
        served = await service.order(12)
        assert abs(sum(name.startswith("a ") for name in served) - 5) <= 1


async def test_a_request_that_leaves_as_it_comes_first_is_not_charged(tokenizer):
    async with running(Narrow(tokenizer, max_waiting_requests=1000)) as service:
        await service.grant()
        await service.ask("runs", tenant="other")
        await service.ask("gone", tenant="a", max_tokens=200)
        await service.ask("first of b", tenant="b")
        service.tasks["gone"].cancel()
        for advance in service.dispatcher.engines.capacity_listeners:
            advance(None)  # before its client's task has heard of it
        assert service.num_queued == 1
        for number in range(10):
            await service.ask(f"a {number}", tenant="a")
            await service.ask(f"b {number}", tenant="b")
        served = await service.order(12)
        assert abs(sum(name.startswith("a ") for name in served) - 5) <= 1


async def test_a_paused_engine_is_given_nothing_while_another_runs(tokenizer):
    async with running(Narrow(tokenizer, num_engines=2)) as service:
        runs, pauses = service.engines

        async def report(engine, state):
            engine.say(stats=EngineStats(state=state, credits=ONE))
            for _ in range(5):
                await asyncio.sleep(0)

        await service.grant()
        await report(pauses, "paused")
        await service.ask("runs", "waits")
        await report(pauses, "paused")
        assert (len(runs.submitted), len(pauses.submitted)) == (1, 0)
        await report(runs, "paused")
        await report(pauses, "paused")
        assert (len(runs.submitted), len(pauses.submitted)) == (1, 1)  # none is better than another


async def test_closing_rejects_waiting_requests_at_once(tokenizer):
    service = Narrow(tokenizer, engine_wait_s=60.0)
    await service.grant()
    await service.ask("runs", "waits")
    async with asyncio.timeout(5):
        await service.dispatcher.close()
        with pytest.raises(ShuttingDown):
            await service.tasks["waits"]


async def test_a_client_that_leaves_as_the_router_gives_up_harms_no_other(tokenizer):
    async with running(Narrow(tokenizer, engine_wait_s=60.0)) as service:
        await service.grant()
        await service.ask("runs", "leaves", "stays")
        service.tasks["leaves"].cancel()
        await service.dispatcher.close()
        with pytest.raises(ShuttingDown):
            await service.tasks["stays"]


async def test_a_request_waits_on_when_its_engine_dies_before_it_has_it(narrow):
    await narrow.ask("runs", "waits")
    narrow.engines[0].submit_error = EngineDead("gone")
    await narrow.answer("runs")
    await until(lambda: not narrow.dispatcher.engines.names)
    number = narrow.add_engine()
    await until(lambda: narrow.engines[number].submitted_ids == ["waits/0@1"])
