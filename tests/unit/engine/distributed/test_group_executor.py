"""Rank 0 and the others: all run the same commands in one order, and end together when one fails."""

import threading
import time
from types import SimpleNamespace

import pytest

from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.errors import AdapterRefused, EngineDead
from rayinfer.liveness import LivenessLimits
from support.fakes.rank_threads import ThreadRanks, plan_of
from support.services.polling import wait_until

SOON_S = 10.0
TIMEOUT_S = 0.4  # without heartbeats


def death_of(executor):
    """Return the executor's reason of death, once it is dead."""

    def is_dead():
        try:
            executor.check()
        except EngineDead as error:
            deaths.append(str(error))
        return bool(deaths)

    deaths = []
    wait_until(is_dead)
    return deaths[0]


def failing():
    raise ValueError("the step fails")


def test_every_rank_runs_all_commands_in_one_order():
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
    commands = [
        ("plan", 1),
        ("copy", "out", [1, 2], [0, 5]),
        ("plan", 2),
        ("release", SleepLevel.OFFLOAD, [4, 7]),
        ("restore", SleepLevel.OFFLOAD),
    ]
    assert ranks.executors[0].recorded == [*commands, "shutdown"]
    assert all(executor.recorded == commands for executor in ranks.executors[1:])
    assert ranks.failures == {}


def test_a_step_is_in_flight_until_its_result_and_later_stages_report_their_busy_time():
    may_go = threading.Event()
    ranks = ThreadRanks(1, 2, before_step={1: may_go.wait})
    assert ranks.rank0.max_concurrent_batches == 2
    first, second = ranks.rank0.submit(plan_of(1)), ranks.rank0.submit(plan_of(2, 1))
    assert ranks.executors[0].recorded == [("plan", 1), ("plan", 2)]
    assert ranks.executors[1].recorded == []
    time.sleep(0.2)
    may_go.set()
    assert second.result().token_ids.tolist() == [0]  # which also finishes the earlier one
    assert first.result().token_ids.tolist() == [0, 1, 2]
    idle_first, idle_second = ranks.rank0.stage_idle_shares
    assert idle_first > 0.5
    assert idle_second < idle_first
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


def test_waits_of_the_first_stage_do_not_count_as_busy_time():
    def wait():
        link.waiting_s += 1000.0  # more than any step takes

    link, ranks = SimpleNamespace(waiting_s=0.0), ThreadRanks(1, 2, before_step={0: wait})
    rank0 = GroupExecutor(ranks.group, ranks.executors[0], link=link)
    rank0.submit(plan_of(1)).result()
    assert rank0.stage_times.busy_s[0] == pytest.approx(-1000.0, abs=100.0)
    rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


@pytest.mark.parametrize("refusing", [0, 1])
def test_an_adapter_that_one_rank_refuses_is_dropped_unless_all_had_it_before(refusing):
    ranks = ThreadRanks(2)
    for executor in ranks.executors:
        executor.adapters = {"mine": "a", "also mine": "a", "new": "b"}
    assert ranks.rank0.load_adapter("mine").digest == "a"
    for folder in ("also mine", "new"):
        del ranks.executors[refusing].adapters[folder]
        with pytest.raises(AdapterRefused, match=f"{folder} is not there"):
            ranks.rank0.load_adapter(folder)
    ranks.rank0.drop_adapter("a")
    ranks.rank0.shutdown()
    ranks.join()
    others = [("load", "a"), ("load", "a"), ("load", "b"), ("drop", "b"), ("drop", "a")]
    refused = [("load", "a"), ("drop", "b"), ("drop", "a")]
    recorded = [[command for command in executor.recorded if command != "shutdown"] for executor in ranks.executors]
    assert recorded == ([refused, others] if refusing == 0 else [others, refused])
    assert ranks.failures == {}


def test_an_adapter_with_other_content_on_another_node_is_refused_and_dropped():
    ranks = ThreadRanks(2)
    for executor, digest in zip(ranks.executors, "ab", strict=True):
        executor.adapters = {"mine": digest}
    with pytest.raises(AdapterRefused, match="other content on the node of another rank"):
        ranks.rank0.load_adapter("mine")
    ranks.rank0.shutdown()
    ranks.join()
    assert {("drop", "a"), ("drop", "b")} <= set(ranks.executors[1].recorded)


def test_a_shutdown_waits_for_the_step_in_flight():
    ranks = ThreadRanks(1, 2, before_step={1: lambda: time.sleep(0.2)})
    ranks.rank0.submit(plan_of(1))
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}
    assert ranks.executors[1].recorded == [("plan", 1)]


@pytest.mark.parametrize(("sizes", "slow_rank"), [((2, 1), 1), ((1, 2), 0), ((1, 2), 1)])
def test_ranks_outlive_a_long_idle_time_and_a_slow_rank(sizes, slow_rank):
    ranks = ThreadRanks(*sizes, timeout_s=TIMEOUT_S, before_step={slow_rank: lambda: time.sleep(2 * TIMEOUT_S)})
    assert ranks.rank0.submit(plan_of(1)).result().token_ids.tolist() == [0, 1, 2]
    time.sleep(2 * TIMEOUT_S)
    ranks.rank0.release(SleepLevel.RECOMPUTE, [])
    ranks.rank0.restore(SleepLevel.RECOMPUTE)
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_release_and_restore_may_outlast_the_timeout(slow_rank):
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S, before_move={slow_rank: lambda: time.sleep(2 * TIMEOUT_S)})
    ranks.rank0.release(SleepLevel.RECOMPUTE, [])
    ranks.rank0.restore(SleepLevel.RECOMPUTE)
    ranks.rank0.shutdown()
    ranks.join()
    assert ranks.failures == {}


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 2)])
def test_a_lost_rank_ends_the_group(sizes):
    ranks = ThreadRanks(*sizes)
    ranks.rank0.submit(plan_of(1)).result()
    ranks.group.connections[-1].shutdown()  # as if the process at its other end were gone
    assert "is lost" in death_of(ranks.rank0)
    ranks.join()
    assert all(isinstance(failure, EngineDead) for failure in ranks.failures.values())
    assert len(ranks.failures) == len(ranks.executors) - 1
    wait_until(lambda: ranks.graces)
    with pytest.raises(EngineDead, match="is lost"):
        ranks.rank0.submit(plan_of(2))
    with pytest.raises(EngineDead, match="is lost"):
        ranks.rank0.release(SleepLevel.PERSIST, [])
    ranks.rank0.shutdown()


def test_a_rank_that_fails_in_a_step_ends_the_group_without_a_retry():
    ranks = ThreadRanks(1, 2, before_step={1: failing})
    step = ranks.rank0.submit(plan_of(1))
    with pytest.raises(EngineDead, match="rank 1"):
        step.result()
    ranks.join()
    assert isinstance(ranks.failures[1], ValueError)
    assert ranks.executors[0].recorded == [("plan", 1)]


def test_a_failure_of_rank_0_in_a_step_ends_the_group():
    ranks = ThreadRanks(2, 1, before_step={0: failing})
    with pytest.raises(EngineDead, match="ValueError: the step fails"):
        ranks.rank0.submit(plan_of(1))
    ranks.join()
    assert isinstance(ranks.failures[1], EngineDead)


def test_a_rank_that_hangs_while_the_engine_is_idle_is_lost_after_the_timeout():
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S)
    started = time.monotonic()
    ranks.stop_heartbeats(1)
    assert f"rank 1 is lost: it has sent no heartbeat for {TIMEOUT_S:g} s" in death_of(ranks.rank0)
    assert time.monotonic() - started < SOON_S
    wait_until(lambda: ranks.graces == [0.0])  # at once: a hung process does not exit by itself
    ranks.rank0.shutdown()
    ranks.join()


@pytest.mark.parametrize("command", ["step", "release"])
def test_a_rank_that_hangs_in_a_command_is_lost_after_the_timeout(command):
    may_go = threading.Event()
    wait = {1: may_go.wait}
    ranks = ThreadRanks(1, 2, timeout_s=TIMEOUT_S, before_step=wait, before_move=wait)
    ranks.stop_heartbeats(1)
    with pytest.raises(EngineDead, match=rf"rank 1 is lost: it has sent no heartbeat for {TIMEOUT_S:g} s"):
        ranks.rank0.submit(plan_of(1)).result() if command == "step" else ranks.rank0.release(SleepLevel.PERSIST, [])
    may_go.set()
    ranks.join()


def test_a_step_that_never_ends_is_lost_after_the_step_timeout():
    may_go = threading.Event()
    ranks = ThreadRanks(1, 2, limits=LivenessLimits(step_timeout_s=0.5), before_step={1: may_go.wait})
    with pytest.raises(EngineDead, match=r"rank 1 is lost: it has sent nothing for 0\.5 s"):
        ranks.rank0.submit(plan_of(1)).result()
    may_go.set()
    ranks.join()


def test_ranks_exit_by_themselves_when_rank_0_hangs():
    ranks = ThreadRanks(2, 1, timeout_s=TIMEOUT_S)
    ranks.rank0.submit(plan_of(1))
    ranks.stop_heartbeats(0)
    ranks.join()
    assert "rank 0 is lost: it has sent no heartbeat" in str(ranks.failures[1])


def test_an_unreferenced_executor_ends_its_ranks():
    ranks = ThreadRanks(2, 1)
    graces = ranks.graces
    del ranks.rank0
    wait_until(lambda: graces)
