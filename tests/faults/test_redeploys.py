"""New versions, broken versions and fewer engines under load."""

import threading
import time

import pytest

from support.faults.fault_load import ask_all, record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, under_load, wait_until_whole
from support.faults.faulty_service import SMALL, FaultyService
from support.services.polling import wait_until

NUM_STREAMS = 500


@pytest.fixture
def versioned(host, model):
    service = FaultyService(host, "versioned", [model.args(drain_timeout_s=30.0)])  # longer than any stream
    yield service
    service.delete()


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-migration"])
def test_f28_a_new_version_under_load(versioned, model, report, without):
    """Every process is replaced: engines get another batch size, and the router another bound on bodies."""
    row = FaultRow(fault="F28", injected="redeployed with other settings")
    bodies = {number: request_body(number, max_tokens=model.num_tokens // 2) for number in range(12)}
    expected = record_answers(versioned.url, bodies)
    old = set(versioned.pids("engine", "router"))
    whole_per_s = 2 * model.whole_per_s
    with versioned.switched(without), under_load(versioned, expected, row, whole_per_s=whole_per_s) as load:
        changed = SMALL | model.args(max_num_seqs=48) | {"drain_timeout_s": 0.0 if without else 30.0}
        versioned.redeploy(models=[changed], max_body_bytes=2**20)
        row.recovery_s = wait_until(
            lambda: not old & set(versioned.pids("engine", "router")) and versioned.is_complete(), 240
        )
        wait_until(lambda: without != "" or len(load.answers) >= NUM_STREAMS, 240)
    judge(report, row, versioned, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "a rolling update"])
def test_f29_a_broken_version_under_load(versioned, model, expected, report, without):
    """The old version goes on, and the status says why; the other run takes the old one down first."""
    row = FaultRow(fault="F29", injected="redeployed with a model that is not there")
    with under_load(versioned, expected, row):
        if without:
            versioned.host.ask("delete", versioned.name)
            time.sleep(10.0)
        versioned.redeploy(models=[SMALL | model.args(model="/nowhere/at-all")])
        wait_until(lambda: "there is no model '/nowhere/at-all'" in versioned.status()["message"], 120)
        time.sleep(5.0)
    judge(report, row, versioned, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-migration"])
def test_f30_one_engine_then_four_then_one_under_load(host, model, expected, report, without):
    """Three of four engines leave with streams in flight; without migration they are not waited for."""
    scaled = model.args(num_replicas=1, drain_timeout_s=0.0 if without else 30.0)
    service = FaultyService(host, "scaled", [scaled])
    row = FaultRow(fault="F30", injected="1 engine, 4, and 1 again")
    with service.switched(without), under_load(service, expected, row) as load:
        for num_replicas in (4, 1):
            service.scale(num_replicas)
            row.recovery_s = wait_until_whole(service)
            enough = len(load.answers) + 2 * model.num_streams
            wait_until(lambda enough=enough: len(load.answers) > enough, 120)
    row.note = "back: until three had left"
    judge(report, row, service, without)
    service.delete()


@pytest.mark.faults
@pytest.mark.parametrize("without", ["", "no-migration"])
def test_f31_an_engine_leaves_during_a_long_stream(host, model, report, without):
    service = FaultyService(host, "leaving", [model.args()])
    row = FaultRow(fault="F31", injected="an engine leaves during a stream of half a minute, grace 5 s")
    body = request_body(0, max_tokens=300, is_mixed=False)
    expected = record_answers(service.url, {0: body})
    answers = []
    with service.switched(without, slow_steps="0.1"):
        asking = threading.Thread(
            target=lambda: answers.extend(ask_all(service.url, [body | {"stream": True}] * 2))  # one at each
        )
        asking.start()
        wait_until(lambda: service.metric("vllm:num_requests_running") == 2)
        old = service.pids("engine")
        service.redeploy(models=[SMALL | model.args(num_replicas=1)])
        row.recovery_s = wait_until(lambda: len(set(old) & set(service.pids("engine"))) == 1, 60)
        asking.join()
    for answer in answers:
        row.count({answer.verdict(expected[0]): 1})
    judge(report, row, service, without)
    service.delete()
