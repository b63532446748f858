import asyncio
from dataclasses import replace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rayinfer.errors import EngineDead, ModelLoadError
from rayinfer.liveness import LivenessLimits
from rayinfer_deployments.cluster.actor_processes import ActorProcess
from rayinfer_deployments.cluster.ray_failures import cause_in_one_line
from rayinfer_deployments.engine.engine_ranks import EngineGroup


class FakeActor:
    """Answers calls with futures that the test resolves; a plain value is there at once."""

    def __init__(self, **answers):
        self.answers = answers
        self.calls = []

    def __getattr__(self, method):
        return FakeMethod(self, method)


class FakeMethod:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *arguments):
        self.actor.calls.append((self.name, *arguments))
        answer = self.actor.answers[self.name]
        if isinstance(answer, asyncio.Future):
            return answer
        done = asyncio.get_running_loop().create_future()
        done.set_result(answer)
        return done


TICK_S = 0.005
QUICK = LivenessLimits(
    ping_interval_s=TICK_S,
    stopped_ping_timeout_s=7 * TICK_S,
    ping_timeout_s=120 * TICK_S,
    first_ping_timeout_s=2400 * TICK_S,
    root_cause_s=0.05,
)


def pending():
    return asyncio.get_running_loop().create_future()


def task_error(cause):
    return RayTaskError("run", "traceback", cause)


def group_of(first, *others, stopped=(), process_of=lambda actor: None, remote=None, **limits):
    killed, timeouts = [], replace(QUICK, **limits)
    is_stopped = stopped.__contains__
    return EngineGroup("engine-x", first, others, killed.append, is_stopped, process_of, timeouts, remote or {}), killed


def test_an_engine_of_one_process_only_starts_it():
    async def scenario():
        first = FakeActor(start="described")
        group, _ = group_of(first)
        assert await group.start() == "described"
        assert first.calls == [("start",)]
        assert not group.others

    asyncio.run(scenario())


def test_the_others_connect_to_the_group_of_the_first_rank():
    async def scenario():
        rendezvous = pending()
        first, others = (
            FakeActor(open_group=rendezvous, start=pending(), ping=1),
            [FakeActor(run=pending(), ping=7) for _ in range(2)],
        )
        group, _ = group_of(first, *others)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.01)
        assert [other.calls[0] for other in others] == [("run", rendezvous)] * 2  # passed on unread
        assert first.calls[:2] == [("open_group",), ("start", rendezvous)]  # which no start overtakes that waits for it
        assert not starting.done()
        first.answers["start"].set_result("described")
        assert await starting == "described"

    asyncio.run(scenario())


@pytest.mark.parametrize("is_first_to_fail", [True, False])
def test_a_failed_start_raises_the_error_that_explains_it(is_first_to_fail):
    async def scenario():
        first, other = FakeActor(open_group="there", start=pending(), ping=1), FakeActor(run=pending(), ping=7)
        group, _ = group_of(first, other)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.01)
        failures = [(other.answers["run"], ModelLoadError("no tensor")), (first.answers["start"], EngineDead("closed"))]
        for answer, cause in failures if is_first_to_fail else reversed(failures):
            answer.set_exception(task_error(cause))
            await asyncio.sleep(0.01)
        with pytest.raises(RayTaskError) as caught:
            await starting
        assert isinstance(caught.value.cause, ModelLoadError)

    asyncio.run(scenario())


def test_a_rank_that_dies_while_the_first_one_waits_for_it_ends_the_start():
    async def scenario():
        first, other = FakeActor(open_group="there", start=pending(), ping=1), FakeActor(run=pending(), ping=7)
        group, _ = group_of(first, other)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.01)
        other.answers["run"].set_exception(ActorDiedError())
        with pytest.raises(EngineDead, match="rank 1 of engine engine-x has died: ActorDiedError"):
            await starting

    asyncio.run(scenario())


WHAT_ENDS_RANK_2 = [
    (ActorDiedError(), "rank 2 of engine engine-x has died: ActorDiedError"),
    (task_error(MemoryError("no room")), "MemoryError: no room"),
]


@pytest.mark.parametrize(("end", "reason"), WHAT_ENDS_RANK_2)
def test_the_first_of_several_ranks_that_fail_in_a_start_is_named(end, reason):
    async def scenario():
        first = FakeActor(open_group="there", start=pending(), ping=1)
        others = [FakeActor(run=pending(), ping=rank) for rank in range(1, 4)]
        group, _ = group_of(first, *others)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.01)
        for other in (others[0], others[2]):
            other.answers["run"].set_exception(task_error(EngineDead("it has lost the others")))
        await asyncio.sleep(0.01)
        others[1].answers["run"].set_exception(end)
        with pytest.raises((EngineDead, RayTaskError)) as caught:
            await starting
        assert reason in cause_in_one_line(caught.value)

    asyncio.run(scenario())


@pytest.mark.parametrize(("end", "reason"), WHAT_ENDS_RANK_2)
def test_the_first_of_several_ranks_that_fail_later_is_the_loss(end, reason):
    async def scenario():
        others = [FakeActor(run=pending(), ping=rank) for rank in range(1, 4)]
        group, _ = await started(*others)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.01)
        for other in (others[0], others[2]):
            other.answers["run"].set_exception(task_error(EngineDead("it has lost the others")))
        await asyncio.sleep(0.01)
        others[1].answers["run"].set_exception(end)
        loss = await asyncio.wait_for(losing, 5.0)
        assert loss.startswith("rank 2 of engine engine-x has died: ")
        assert reason.rsplit(": ", maxsplit=1)[-1] in loss

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("end", "loss"),
    [
        (EngineDead("it has lost the others"), "rank 2 of engine engine-x does not answer"),
        (ValueError("no space"), "rank 3 of engine engine-x has died: ValueError: no space"),
    ],
    ids=["silent", "its own error"],
)
def test_a_silent_rank_is_the_loss_where_others_only_notice_it(end, loss):
    async def scenario():
        others = [FakeActor(run=pending(), ping=rank) for rank in range(1, 4)]
        group, _ = await started(*others)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.1)
        others[1].answers["ping"] = pending()
        await asyncio.sleep(0.1)
        assert not losing.done()
        others[0].answers["run"].set_exception(task_error(EngineDead("it has lost the others")))
        await asyncio.sleep(0.01)
        others[2].answers["run"].set_exception(task_error(end))
        assert await asyncio.wait_for(losing, 5.0) == loss

    asyncio.run(scenario())


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_rank_that_is_stopped_before_its_first_answer_ends_the_start(is_ready):
    async def scenario():
        first, other = FakeActor(open_group="there", start=pending(), ping=7), FakeActor(run=pending(), ping=pending())
        processes = {first: ActorProcess(7, is_ready=True), other: ActorProcess(8, is_ready)}
        stopped = set()
        group, _ = group_of(first, other, stopped=stopped, process_of=processes.get)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.2)  # forty ticks: it may be busy
        assert not starting.done()
        stopped.add(8)
        with pytest.raises(EngineDead, match="rank 1 of engine engine-x has not answered for"):
            await asyncio.wait_for(starting, 2.0)  # far from first_ping_timeout_s

    asyncio.run(scenario())


@pytest.mark.parametrize(("is_ready", "remote"), [(True, {}), (False, {1: "another node"})], ids=["ready", "remote"])
def test_a_rank_that_is_ready_or_of_another_node_has_the_ordinary_ping_timeout(is_ready, remote):
    async def scenario():
        first, other = FakeActor(open_group="there", start=pending(), ping=7), FakeActor(run=pending(), ping=pending())
        process = ActorProcess(8, is_ready)
        group, _ = group_of(first, other, process_of=lambda actor: process, remote=remote, ping_timeout_s=0.2)
        with pytest.raises(EngineDead, match=r"rank 1 of engine engine-x has not answered for 0\.2 s"):
            await asyncio.wait_for(group.start(), 5.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_while_the_engine_starts_ends_the_start(rank):
    async def scenario():
        stopped = set()
        actors = [FakeActor(open_group="there", start=pending(), ping=7), FakeActor(run=pending(), ping=8)]
        group, _ = group_of(*actors, stopped=stopped)
        starting = asyncio.ensure_future(group.start())
        await asyncio.sleep(0.1)
        actors[rank].answers["ping"] = pending()
        await asyncio.sleep(0.1)  # twenty ticks: it may be busy
        assert not starting.done()
        stopped.add(7 + rank)
        with pytest.raises(EngineDead, match=f"rank {rank} of engine engine-x has not answered for"):
            await asyncio.wait_for(starting, 5.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_rank_that_never_answers_ends_the_start_after_the_timeout():
    async def scenario():
        other = FakeActor(run=pending(), ping=pending())
        first = FakeActor(open_group="there", start=pending(), ping=7)
        group, _ = group_of(first, other, ping_timeout_s=10 * TICK_S, first_ping_timeout_s=0.2)
        with pytest.raises(EngineDead, match=r"rank 1 of engine engine-x has not answered for 0\.2 s"):
            await asyncio.wait_for(group.start(), 5.0)

    asyncio.run(scenario())


def test_a_failed_ping_is_retried():
    async def scenario():
        other = FakeActor(run=pending(), ping=7)
        group, _ = await started(other, ping_timeout_s=20 * TICK_S)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.03)
        other.answers["ping"] = pending()
        other.answers["ping"].set_exception(ActorUnavailableError("the network", None))
        await asyncio.sleep(0.03)
        other.answers["ping"] = 7
        await asyncio.sleep(0.3)
        assert not losing.done()
        losing.cancel()

    asyncio.run(scenario())


async def started(*others, stopped=(), **limits):
    group, killed = group_of(
        FakeActor(open_group="there", start="described", ping=1), *others, stopped=stopped, **limits
    )
    await group.start()
    return group, killed


def test_a_rank_that_ends_is_the_groups_loss():
    async def scenario():
        others = [FakeActor(run=pending(), ping=7) for _ in range(3)]
        group, killed = await started(*others)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.02)
        others[1].answers["run"].set_exception(task_error(RuntimeError("Connection closed by peer")))
        assert await losing == "rank 2 of engine engine-x has died: RuntimeError: Connection closed by peer"
        group.kill()
        assert killed == [group.first, *others]

    asyncio.run(scenario())


def test_a_rank_that_is_stopped_is_the_groups_loss():
    async def scenario():
        silent, stopped = FakeActor(run=pending(), ping=8), {8}
        group, _ = await started(FakeActor(run=pending(), ping=7), silent, stopped=stopped)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.1)  # twenty ticks: as long as it answers it is not lost
        assert not losing.done()
        silent.answers["ping"] = pending()
        assert "rank 2 of engine engine-x has not answered for" in await asyncio.wait_for(losing, 5.0)

    asyncio.run(scenario())


def test_a_busy_rank_is_lost_when_it_is_stopped():
    async def scenario():
        busy, stopped = FakeActor(run=pending(), ping=8), set()
        group, _ = await started(busy, stopped=stopped)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.1)
        busy.answers["ping"] = pending()
        await asyncio.sleep(0.2)  # forty ticks, as when weights are read with Python's lock held
        assert not losing.done()
        stopped.add(8)
        assert "rank 1 of engine engine-x has not answered for" in await asyncio.wait_for(losing, 5.0)

    asyncio.run(scenario())


def test_a_running_rank_is_lost_after_the_ping_timeout():
    async def scenario():
        busy = FakeActor(run=pending(), ping=8)
        group, _ = await started(busy, ping_timeout_s=20 * TICK_S)
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.1)
        busy.answers["ping"] = pending()
        assert "has not answered for" in await asyncio.wait_for(losing, 5.0)

    asyncio.run(scenario())


def test_a_watch_that_is_cancelled_leaves_nothing_running():
    async def scenario():
        group, killed = await started(FakeActor(run=pending(), ping=7))
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.01)
        losing.cancel()
        await asyncio.sleep(0.02)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not killed

    asyncio.run(scenario())


def test_ranks_on_other_nodes_meet_at_the_address_of_the_first():
    async def scenario():
        first, other = FakeActor(open_group="there", start="described", ping=7), FakeActor(run=pending(), ping=8)
        group = EngineGroup("engine-x", first, [other], lambda actor: None, limits=QUICK, remote={1: "node-b"})
        assert await group.start() == "described"
        assert first.calls[0] == ("open_group", True)
        assert group.other_nodes == {"node-b"}

    asyncio.run(scenario())


def test_process_ids_of_other_nodes_are_not_looked_up_here():
    async def scenario():
        first, other = FakeActor(open_group="there", start="described", ping=1), FakeActor(run=pending(), ping=8)
        is_stopped = {8}.__contains__  # another process with this id, on the replica's own node
        limits = replace(QUICK, ping_timeout_s=0.6)
        group = EngineGroup(
            "engine-x", first, [other], lambda actor: None, is_stopped, limits=limits, remote={1: "node-b"}
        )
        await group.start()
        losing = asyncio.ensure_future(group.first_loss())
        await asyncio.sleep(0.05)
        other.answers["ping"] = pending()
        await asyncio.sleep(0.3)
        assert not losing.done()
        assert await asyncio.wait_for(losing, 5.0) == "rank 1 of engine engine-x has not answered for 0.6 s"

    asyncio.run(scenario())
