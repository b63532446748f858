"""Serve's own processes are killed: its controller, its HTTP proxies, and one of two routers."""

import time

import pytest

from support.faults.fault_load import record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, under_load, wait_until_whole
from support.faults.faulty_service import FaultyService, Host, kill
from support.services.polling import wait_until

PROXY_OUTAGE_S = 5.0
CONTROLLER_OUTAGE_S = 6.0  # beyond the 3 s that requests wait for an engine
SLOW_NOTICE = {  # Serve's own defaults, which `cluster/ray_environment.py` replaces
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "10",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "10",
}


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "a second router"])
def test_f13_one_of_two_routers_killed(host, model, expected, report, without):
    """Its own streams break with their connections; later requests reach the other router."""
    name = "alone" if without else "routers"
    service = FaultyService(host, name, [model.args(num_replicas=1)], num_routers=1 if without else 2)
    wait_until(lambda: len(service.pids("router")) == (1 if without else 2), 120)
    row = FaultRow(fault="F13", injected="a router killed, requests that came later", recovery_ceiling_s=3.0)
    with under_load(service, expected, FaultRow(fault="", injected="")) as load:
        victim = service.pids("router")[0]
        kill(victim)
        killed_s = time.monotonic()
        time.sleep(0.2)  # for the kernel to close its socket
        row.recovery_s = 0.2 + wait_until(service.is_answering, 120)
        wait_until(lambda: len(set(service.pids("router")) - {victim}) == (1 if without else 2), 120)
    row.count(load.verdicts(lambda answer: answer.started_s > killed_s + 0.2))
    row.note = f"{load.verdicts()['failed'] - row.failed} streams of its own broke"
    judge(report, row, service, without)
    service.delete()


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-memory"])
def test_f15_the_controller_killed(pair, expected, report, without):
    """Routers keep the engines that they know; in the other run they drop engines that are not confirmed."""
    row = FaultRow(fault="F15", injected=f"Serve's controller killed again and again for {CONTROLLER_OUTAGE_S:g} s")
    victims: set[int] = set()
    with pair.switched(without), under_load(pair, expected, row):
        ends_s = time.monotonic() + CONTROLLER_OUTAGE_S
        while time.monotonic() < ends_s:
            for victim in set(pair.pids("controller")) - victims:
                kill(victim)
                victims.add(victim)
            time.sleep(0.1)
        row.recovery_s = wait_until(lambda: set(pair.pids("controller")) - victims, 120)
        time.sleep(3.0)
    wait_until(lambda: pair.is_answering() and pair.is_complete(), 120)
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-migration"])
def test_f16_the_controller_and_an_engine_killed(pair, expected, report, without):
    row = FaultRow(fault="F16", injected="Serve's controller and an engine killed")
    with pair.switched(without), under_load(pair, expected, row):
        kill(pair.pids("controller")[0])
        victim = pair.pids("engine")[0]
        kill(victim)
        row.recovery_s = wait_until_whole(pair, [victim])
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "proxies watched closely"])
def test_f14_the_http_proxy_killed(tmp_path, model, report, without):
    host = Host(tmp_path, model, with_proxy=True, environment=SLOW_NOTICE if without else {})
    try:
        service = FaultyService(host, "proxied", [model.args(num_replicas=1)])
        expected = record_answers(service.url, {0: request_body(0, max_tokens=16)})
        row = FaultRow(fault="F14", injected="the HTTP proxy killed", recovery_ceiling_s=PROXY_OUTAGE_S)
        kill(service.pids("proxy")[0])
        wait_until(lambda: not service.is_answering())
        row.recovery_s = wait_until(service.is_answering, 120)
        again = record_answers(service.url, {0: request_body(0, max_tokens=16)})
        row.count({again[0].verdict(expected[0]): 1})
        row.without = without
        if without:
            report.is_seen(row, is_harmed=row.recovery_s > 2 * PROXY_OUTAGE_S)
        else:
            judge(report, row, service)
    finally:
        host.end()
