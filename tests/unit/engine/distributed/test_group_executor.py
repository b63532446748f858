"""Rank 0 and the others: all are told the same in one order, and they end together, whoever fails."""

import threading
import time
from types import SimpleNamespace

import pytest

from rayinfer.engine.distributed import group_executor
from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.errors import EngineDead
from support.fakes.command_threads import ThreadRanks, plan_of

SOON_S = 10.0
TIMEOUT_S = 0.4  # of silence


def until(is_so, timeout_s=SOON_S):
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def death_of(executor):
    """Return the executor's reason of death, once it is dead."""

    def is_dead():
        try:
            executor.check()
        except EngineDead as error:
            deaths.append(str(error))
        return bool(deaths)

    deaths = []
    until(is_dead)
    return deaths[0]


def failing():
    raise ValueError("the sky falls")


def test_every_rank_is_told_everything_in_one_order():
    ranks = ThreadRanks(2, 2)
    copy = BlockCopy(direction="out", source_blocks=[1, 2], target_blocks=[0, 5])
    steps = [ranks.rank0.submit(plan_of(1))]
    ranks.rank0.copy_blocks(copy)
    steps.append(ranks.rank0.submit(plan_of(2, 2)))
    assert [step.result().token_ids.tolist() for step in steps] == [[0, 1, 2], [0, 1]]
    ranks.rank0.release(SleepLevel.OFFLOAD, [4, 7])
    ranks.rank0.restore(SleepLevel.OFFLOAD)
    ranks.rank0.shutdown()
    ranks.join()
    told = [
        ("plan", 1),
        ("copy", "out", [1, 2], [0, 5]),
        ("plan", 2),
        ("release", SleepLevel.OFFLOAD, [4, 7]),
        ("restore", SleepLevel.OFFLOAD),
    ]
    assert ranks.executors[0].noted == [*told, "shutdown"]
    assert all(executor.noted == told for executor in ranks.executors[1:])
    assert ranks.failures == {}


def test_a_step_is_under_way_until_its_tokens_are_asked_for_and_later_stages_tell_how_busy_they_were():
    may_go = threading.Event()
    ranks = ThreadRanks(1, 2, before_step={1: may_go.wait})
    assert ranks.rank0.max_concurrent_batches == 2
    first, second = ranks.rank0.submit(plan_of(1)), ranks.rank0.submit(plan_of(2, 1))
    assert ranks.executors[0].noted == [("plan", 1), ("plan", 2)]
    assert ranks.executors[1].noted == []
    time.sleep(0.2)
    may_go.set()
    assert second.result().token_ids.tolist() == [0]  # whoever asks later is told of earlier ones, too
    assert first.result().token_ids.tolist() == [0, 1, 2]
    idle_first, idle_second = ranks.rank0.stage_idle_shares
    assert idle_first > 0.5
    assert idle_second < idle_first
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


def test_what_the_first_stage_waits_for_others_is_no_time_in_which_it_computes():
    def wait():
        link.waiting_s += 1000.0  # more than any step takes

    link, ranks = SimpleNamespace(waiting_s=0.0), ThreadRanks(1, 2, before_step={0: wait})
    rank0 = GroupExecutor(ranks.group, ranks.executors[0], link=link)
    rank0.submit(plan_of(1)).result()
    assert rank0.stage_times.busy_s[0] == pytest.approx(-1000.0, abs=100.0)
    rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


def test_a_shutdown_waits_for_the_step_under_way():
    ranks = ThreadRanks(1, 2, before_step={1: lambda: time.sleep(0.2)})
    ranks.rank0.submit(plan_of(1))
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}
    assert ranks.executors[1].noted == [("plan", 1)]


@pytest.mark.parametrize(("sizes", "slow_rank"), [((2, 1), 1), ((1, 2), 0), ((1, 2), 1)])
def test_ranks_outlive_a_long_rest_and_whatever_takes_one_of_them_long(sizes, slow_rank):
    ranks = ThreadRanks(*sizes, timeout_s=TIMEOUT_S, before_step={slow_rank: lambda: time.sleep(2 * TIMEOUT_S)})
    assert ranks.rank0.submit(plan_of(1)).result().token_ids.tolist() == [0, 1, 2]
    time.sleep(2 * TIMEOUT_S)
    ranks.rank0.release(SleepLevel.RECOMPUTE, [])
    ranks.rank0.restore(SleepLevel.RECOMPUTE)
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_ranks_may_take_as_long_as_they_need_to_fall_asleep_and_to_wake(slow_rank):
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S, before_move={slow_rank: lambda: time.sleep(2 * TIMEOUT_S)})
    ranks.rank0.release(SleepLevel.RECOMPUTE, [])
    ranks.rank0.restore(SleepLevel.RECOMPUTE)
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 2)])
def test_a_rank_that_is_lost_ends_all_of_them(sizes):
    ranks = ThreadRanks(*sizes)
    ranks.rank0.submit(plan_of(1)).result()
    last = ranks.group.lines[-1]
    last._socket.shutdown(2)  # as if the process at its other end were gone
    assert "is lost" in death_of(ranks.rank0)
    ranks.join()
    assert all(isinstance(failure, EngineDead) for failure in ranks.failures.values())
    assert len(ranks.failures) == len(ranks.executors) - 1
    until(lambda: ranks.graces)
    with pytest.raises(EngineDead, match="is lost"):
        ranks.rank0.submit(plan_of(2))
    with pytest.raises(EngineDead, match="is lost"):
        ranks.rank0.release(SleepLevel.PERSIST, [])
    ranks.rank0.shutdown()


def test_a_rank_that_fails_in_a_step_ends_all_of_them_and_nothing_is_tried_again():
    ranks = ThreadRanks(1, 2, before_step={1: failing})
    step = ranks.rank0.submit(plan_of(1))
    with pytest.raises(EngineDead, match="rank 1"):
        step.result()
    ranks.join()
    assert isinstance(ranks.failures[1], ValueError)
    assert ranks.executors[0].noted == [("plan", 1)]


def test_rank_0_that_fails_in_a_step_ends_all_of_them():
    ranks = ThreadRanks(2, 1, before_step={0: failing})
    with pytest.raises(EngineDead, match="ValueError: the sky falls"):
        ranks.rank0.submit(plan_of(1))
    ranks.join()
    assert isinstance(ranks.failures[1], EngineDead)


def test_a_rank_that_is_frozen_while_the_engine_rests_is_given_up_within_the_timeout():
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S)
    started = time.monotonic()
    ranks.freeze(1)
    assert f"rank 1 is lost: it has said nothing for {TIMEOUT_S:g} s" in death_of(ranks.rank0)
    assert time.monotonic() - started < SOON_S
    until(lambda: ranks.graces == [0.0])  # at once: what is frozen does not end by itself
    ranks.rank0.shutdown()
    ranks.join()


@pytest.mark.parametrize("command", ["step", "release"])
def test_a_rank_that_is_frozen_while_it_is_waited_for_is_given_up_within_the_timeout(command):
    may_go = threading.Event()
    wait = {1: may_go.wait}
    ranks = ThreadRanks(1, 2, timeout_s=TIMEOUT_S, before_step=wait, before_move=wait)
    ranks.freeze(1)
    with pytest.raises(EngineDead, match=rf"rank 1 is lost: it has said nothing for {TIMEOUT_S:g} s"):
        ranks.rank0.submit(plan_of(1)).result() if command == "step" else ranks.rank0.release(SleepLevel.PERSIST, [])
    may_go.set()
    ranks.join()


def test_a_rank_that_lives_and_never_ends_its_step_is_given_up_in_the_end(monkeypatch):
    monkeypatch.setattr(group_executor, "STEP_TIMEOUT_S", 0.5)
    may_go = threading.Event()
    ranks = ThreadRanks(1, 2, before_step={1: may_go.wait})
    with pytest.raises(EngineDead, match=r"rank 1 is lost: it has said nothing for 0\.5 s"):
        ranks.rank0.submit(plan_of(1)).result()
    may_go.set()
    ranks.join()


def test_ranks_end_by_themselves_when_rank_0_is_frozen():
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S)
    ranks.rank0.submit(plan_of(1))
    ranks.freeze(0)
    ranks.join()
    assert "rank 0 is lost: it has said nothing" in str(ranks.failures[1])


def test_an_executor_that_nobody_has_any_more_lets_its_ranks_go():
    ranks = ThreadRanks(2, 1)
    graces = ranks.graces
    del ranks.rank0
    until(lambda: graces)
