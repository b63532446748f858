"""Steps that raise, and requests that end whatever engine they come to."""

import threading
import time

import pytest

from support.faults.fault_load import Answer, ask_all
from support.faults.fault_models import SERVED_NAME
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, under_load, wait_until_whole
from support.services.polling import wait_until

POISON = {
    "model": SERVED_NAME,
    "prompt": [7] * 12,
    "max_tokens": 8,
    "temperature": 0,
}  # as in sabotage/sitecustomize.py
MAX_DEATHS = 3


@pytest.mark.parametrize("without", ["", pytest.param("no-isolation", marks=pytest.mark.faults)])
def test_f10_a_step_that_raises_once_fails_no_request(pair, expected, report, without):
    row = FaultRow(fault="F10", injected="a step raises once")
    with pair.switched(without), under_load(pair, expected, row):
        switch = f"step-{pair.pids('engine')[0]}"
        pair.put_switch(switch, "raise-once")
        wait_until(lambda: not (pair.host.switches / switch).exists())
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-migration"])
def test_f11_an_engine_whose_steps_all_raise_is_replaced(pair, expected, report, without):
    row = FaultRow(fault="F11", injected="every step of an engine raises")
    victim = pair.pids("engine")[0]
    with pair.switched(without), under_load(pair, expected, row):
        pair.put_switch(f"step-{victim}", "raise")
        row.recovery_s = wait_until_whole(pair, [victim])
    pair.take_switch(f"step-{victim}")
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-quarantine"])
def test_f12_a_request_that_ends_its_engines_is_refused_before_long(pair, expected, report, without):
    row = FaultRow(fault="F12", injected="a request that ends any engine")
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.extend(ask_all(pair.url, [POISON])))
    with pair.switched(without), under_load(pair, expected, row) as load:
        begun_s = time.monotonic()
        num_deaths = deaths_until(pair, asking, most=MAX_DEATHS + 1)
        if without:  # let it be refused after all
            pair.take_switch(without)
        asking.join()
        wait_until_whole(pair)
    row.note = f"{num_deaths} engines ended"
    row.without = without
    if without:
        report.is_seen(row, is_harmed=num_deaths > MAX_DEATHS)
    else:
        assert (answers[0].status, num_deaths) == (503, MAX_DEATHS)
        assert set(load.verdicts(lambda answer: answer.started_s < begun_s)) == {"exact"}  # refused are newcomers only
        judge(report, row, pair, may_refuse=True)


def deaths_until(service, asking, *, most):
    """Count the engines that end while requests are sent, up to `most`."""
    seen, alive = set(), set(service.pids("engine"))
    asking.start()
    seen |= alive
    while asking.is_alive() and len(seen - alive) < most:
        time.sleep(0.2)
        alive = set(service.pids("engine"))
        seen |= alive
    return len(seen - set(service.pids("engine")))
