"""Engines that are frozen, stuck in a step, or wake up after they were replaced."""

import time

import pytest

from support.faults.fault_load import record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import freeze, judge, thaw, under_load, wait_until_whole
from support.faults.faulty_service import FaultyService, kill
from support.services.polling import wait_until

FROZEN_GAP_S = 2.5  # a sign of life is missed after 2 s, looked for every 0.25 s
FROZEN_FOR_S = 6.0  # without a watch; a replica would end its engine after 8 s
STUCK_GAP_S = 7.0  # a step may take 5 s, a sign of life comes every 0.75 s


def test_f08_a_frozen_engine_is_left_and_replaced(pair, expected, prefill_s, report):
    row = FaultRow(fault="F08", injected="an engine frozen", recovery_ceiling_s=15.0)
    row.gap_ceiling_s = FROZEN_GAP_S + prefill_s
    with under_load(pair, expected, row) as load:
        victim = pair.pids("engine")[0]
        load.strike()
        freeze(victim)
        row.recovery_s = wait_until(lambda: victim not in pair.pids("engine"), 150)
        load.stop()
    wait_until_whole(pair)
    judge(report, row, pair)


@pytest.mark.faults
def test_f08_without_the_watch_streams_stand_still(pair, expected, report):
    row = FaultRow(fault="F08", injected="an engine frozen", without="no-watch")
    with pair.switched("no-watch"), under_load(pair, expected, row):
        victim = pair.pids("engine")[0]
        freeze(victim)
        time.sleep(FROZEN_FOR_S)
        thaw(victim)
    report.is_seen(row, is_harmed=row.gap_s > FROZEN_FOR_S - 1.0)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-fence"])
def test_f09_a_frozen_engine_that_wakes_up_sends_no_stale_tokens(pair, prefill_s, report, without):
    """Streams are long enough for the engine to find them elsewhere when it wakes up."""
    bodies = {number: request_body(number, max_tokens=4 * pair.host.model.num_tokens) for number in range(6)}
    expected = record_answers(pair.url, bodies)
    row = FaultRow(fault="F09", injected="an engine frozen for 5 s, then woken")
    row.gap_ceiling_s = FROZEN_GAP_S + prefill_s
    with pair.switched(without), under_load(pair, expected, row) as load:
        victim = pair.pids("engine")[0]
        load.strike()
        freeze(victim)
        time.sleep(5.0)
        thaw(victim)
        time.sleep(3.0)
    if without:  # lines that were never closed are still there
        victims = pair.pids("engine")
        for pid in victims:
            kill(pid)
        wait_until_whole(pair, victims)
    judge(report, row, pair, without)


@pytest.mark.faults
def test_a_stuck_engine_is_left_by_its_streams_and_replaced(pair, expected, prefill_s, report):
    row = FaultRow(fault="F10 hang", injected="a step never ends, one of two engines", recovery_ceiling_s=30.0)
    row.gap_ceiling_s = STUCK_GAP_S + prefill_s
    with under_load(pair, expected, row) as load:
        victim = pair.pids("engine")[0]
        load.strike()
        pair.put_switch(f"step-{victim}", "hang")
        row.recovery_s = wait_until_whole(pair, [victim])
    pair.take_switch(f"step-{victim}")
    judge(report, row, pair)


@pytest.mark.faults
def test_without_the_watch_streams_wait_until_a_stuck_engine_ends_itself(pair, expected, prefill_s, report):
    row = FaultRow(fault="F10 hang", injected="a step never ends, one of two engines", without="no-watch")
    with pair.switched("no-watch"), under_load(pair, expected, row):
        victim = pair.pids("engine")[0]
        pair.put_switch(f"step-{victim}", "hang")
        row.recovery_s = wait_until_whole(pair, [victim])
    pair.take_switch(f"step-{victim}")
    report.is_seen(row, is_harmed=row.gap_s > STUCK_GAP_S + prefill_s)


@pytest.mark.faults
def test_streams_of_the_only_engine_outlive_its_being_stuck(host, model, expected, report):
    service = FaultyService(host, "single", [model.args(num_replicas=1)])
    row = FaultRow(fault="F10 hang", injected="a step never ends, the only engine", recovery_ceiling_s=30.0)
    with under_load(service, expected, row):
        (victim,) = service.pids("engine")
        service.put_switch(f"step-{victim}", "hang")
        row.recovery_s = wait_until_whole(service, [victim])
    service.take_switch(f"step-{victim}")
    judge(report, row, service, may_refuse=True)
    service.delete()
