"""Engines of several processes: one of them is killed or frozen, and all of them have to go."""

import random
import statistics
import time

import pytest

from support.faults.fault_load import record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import freeze, judge, prefill_time, thaw, under_load, wait_until_whole
from support.faults.faulty_service import FaultyService, kill
from support.faults.leftover_processes import GroupRemains
from support.services.polling import wait_until

NUM_REQUESTS = 12
GAP_S = 1.0  # and the time to compute prompts and tokens so far again
GONE_S = 5.0  # for every process of the group
SILENCE_S = 2.0  # and two steps: then a frozen rank is given up
FROZEN_FOR_S = 6.0  # without a watch
SHAPES = [(1, 2), (2, 2)]  # processes side by side, and one after the other


@pytest.fixture(scope="module")
def pair_of_groups(host, model):
    """Two engines of two ranks each."""
    service = FaultyService(host, "groups", [model.args(tensor_parallel_size=2)])
    yield service
    service.delete()


@pytest.fixture
def groups(pair_of_groups):
    """Both up, whatever the test before has done to them."""
    wait_until(lambda: len(pair_of_groups.known_groups()) == 2, 120.0)
    return pair_of_groups


@pytest.fixture(scope="module")
def answers(pair_of_groups):
    """The answers before anything was broken."""
    return answers_of(pair_of_groups)


def answers_of(service):
    num_tokens = service.host.model.num_tokens
    bodies = {number: request_body(number, max_tokens=num_tokens) for number in range(NUM_REQUESTS)}
    return record_answers(service.url, bodies)


@pytest.fixture
def recompute_s(groups):
    """Return how long one engine takes to compute again what half of the load's streams had."""
    return prefill_time(groups)


@pytest.mark.faults
@pytest.mark.parametrize("rank", [1, 0])
def test_f06_one_rank_killed_ends_the_whole_group(groups, answers, recompute_s, report, rank):
    row = FaultRow(fault="F06", injected=f"rank {rank} of 2 killed", recovery_ceiling_s=GONE_S)
    row.gap_ceiling_s = GAP_S + recompute_s
    lose_group(groups, answers, row, lambda group: kill(group[rank]))
    judge(report, row, groups)


@pytest.mark.faults
def test_f06_without_migration_its_streams_are_lost(groups, answers, report):
    row = FaultRow(fault="F06", injected="rank 1 of 2 killed")
    with groups.switched("no-migration"):
        lose_group(groups, answers, row, lambda group: kill(group[1]))
    judge(report, row, groups, "no-migration")


@pytest.mark.faults
def test_f06_no_rank_outlives_the_replica_that_owns_it(groups, answers, recompute_s, report):
    row = FaultRow(fault="F06", injected="the replica killed that owns 2 ranks", recovery_ceiling_s=GONE_S)
    row.gap_ceiling_s = GAP_S + recompute_s
    lose_group(groups, answers, row, lambda group: kill(groups.owner_of(group[0])))
    judge(report, row, groups)


@pytest.mark.faults
@pytest.mark.parametrize(("tensor_parallel_size", "pipeline_parallel_size"), SHAPES)
def test_f06_a_rank_of_a_pipeline_killed(host, model, report, tensor_parallel_size, pipeline_parallel_size):
    shape = {"tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size}
    service = FaultyService(host, f"groups-{tensor_parallel_size}-{pipeline_parallel_size}", [model.args(**shape)])
    answers = answers_of(service)
    injected = f"the last rank killed, {tensor_parallel_size} side by side in {pipeline_parallel_size} stages"
    row = FaultRow(fault="F06", injected=injected, recovery_ceiling_s=GONE_S)
    row.gap_ceiling_s = GAP_S + prefill_time(service)
    lose_group(service, answers, row, lambda group: kill(group[-1]))
    judge(report, row, service)
    service.delete()


def test_f07_a_frozen_rank_ends_the_whole_group(groups, answers, recompute_s, report):
    row = FaultRow(fault="F07", injected="rank 1 of 2 frozen", recovery_ceiling_s=GONE_S)
    p99_step_s = lose_group(groups, answers, row, lambda group: freeze(group[1]))
    row.gap_ceiling_s = SILENCE_S + 2 * p99_step_s + recompute_s
    judge(report, row, groups)


@pytest.mark.faults
def test_f07_without_the_watch_streams_stand_still(groups, answers, report):
    row = FaultRow(fault="F07", injected="rank 1 of 2 frozen", without="no-rank-watch")
    with groups.switched("no-rank-watch"), under_load(groups, answers, row):
        victim = groups.known_groups()[0][1]
        freeze(victim)
        time.sleep(FROZEN_FOR_S)
        thaw(victim)
    wait_until_whole(groups)
    report.is_seen(row, is_harmed=row.gap_s > SILENCE_S + GAP_S)


@pytest.mark.faults
def test_twenty_kills_of_any_rank_under_twelve_mixed_streams(host, model, report):
    trio = FaultyService(host, "group-trio", [model.args(num_replicas=3, tensor_parallel_size=2)])
    answers = answers_of(trio)
    row, draw, num_kills = FaultRow(fault="rank kills", injected="a rank killed at random moments"), random.Random(7), 0
    with under_load(trio, answers, row, num_streams=12, whole_per_s=0.0):
        while num_kills < 20:
            time.sleep(draw.uniform(0.5, 4.0))
            groups = trio.known_groups()
            if len(groups) > 1:  # a stream that loses three engines in a row fails by design
                kill(draw.choice(draw.choice(groups)))
                num_kills += 1
        row.recovery_s = wait_until_whole(trio)
    row.note = f"{num_kills} kills, 2 ranks each, float32"
    judge(report, row, trio)
    trio.delete()


def lose_group(service, answers, row, break_it):
    """Break a group under load, wait until it is gone and another is there; returns the 99th percentile of steps."""
    with under_load(service, answers, row) as load:
        group = service.known_groups()[0]
        remains = GroupRemains(group)
        steps_s = [gap_s for answer in load.answers for gap_s in answer.gaps_s[1:]]
        load.strike()
        break_it(group)
        row.recovery_s = wait_until(lambda: remains.num_processes == 0, 60)
        again_s = row.recovery_s + wait_until_whole(service, group)
        load.stop()
    row.leaked += remains.count()
    p99_step_s = statistics.quantiles(steps_s, n=100)[-1]
    row.note = f"p99 of steps {p99_step_s:.3f} s; back: all of it gone, another engine after {again_s:.1f} s"
    return p99_step_s
