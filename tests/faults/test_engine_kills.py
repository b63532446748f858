"""Engines are killed under streams of all kinds and whole answers."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.faults.fault_load import ask_all, record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, kill_again_and_again, under_load, wait_until_whole
from support.faults.faulty_service import FaultyService, kill
from support.services.polling import wait_until

GAP_S = 1.0  # and the time to compute prompts and tokens so far again
NUM_WHOLE = 8
MIGRATION = ["", pytest.param("no-migration", marks=pytest.mark.faults)]


@pytest.mark.parametrize("without", MIGRATION)
def test_f01_an_engine_killed_under_streams(pair, expected, prefill_s, report, without):
    row = FaultRow(fault="F01", injected="an engine killed, streams", gap_ceiling_s=GAP_S + prefill_s)
    with pair.switched(without), under_load(pair, expected, row, whole_per_s=0.0) as load:
        victim = pair.pids("engine")[0]
        load.strike()
        kill(victim)
        row.recovery_s = wait_until_whole(pair, [victim])
        load.stop()
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", MIGRATION)
def test_f02_an_engine_killed_under_whole_answers(pair, expected, report, without):
    row = FaultRow(fault="F02", injected=f"an engine killed, {NUM_WHOLE} whole answers in flight")
    bodies = [expected[number].body for number in range(NUM_WHOLE)]
    with pair.switched(without), ThreadPoolExecutor(1) as others:
        asking = others.submit(ask_all, pair.url, bodies)
        wait_until(lambda: pair.metric("vllm:num_requests_running") >= NUM_WHOLE)  # some at each of two engines
        victim = pair.pids("engine")[0]
        kill(victim)
        answers = asking.result()
        row.recovery_s = wait_until_whole(pair, [victim])
    row.count(Counter(answer.verdict(expected[number]) for number, answer in enumerate(answers)))
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", MIGRATION)
def test_f03_an_engine_killed_while_it_computes_prompts(pair, report, without):
    row = FaultRow(fault="F03", injected="an engine killed before first tokens")
    bodies = {n: request_body(n, max_tokens=8, prompt=f"{n} " + "once upon a time " * 150) for n in range(8)}
    expected = record_answers(pair.url, bodies)
    answers = []
    with pair.switched(without, slow_steps="0.2"):
        asking = threading.Thread(
            target=lambda: answers.extend(ask_all(pair.url, [body | {"stream": True} for body in bodies.values()]))
        )
        asking.start()
        wait_until(lambda: pair.metric("vllm:num_requests_running") >= len(bodies) / 2)
        victim = pair.pids("engine")[0]
        kill(victim)
        pair.keep_pace()
        asking.join()
    for number, answer in enumerate(answers):
        row.count({answer.verdict(expected[number]): 1})
    wait_until_whole(pair, [victim])
    judge(report, row, pair, without)


@pytest.mark.faults
@pytest.mark.parametrize("without", MIGRATION)
def test_f04_both_engines_killed_at_once(pair, expected, report, without):
    alone = pair.pids("engine")[0]
    kill(alone)
    restart_s = wait_until_whole(pair, [alone])
    row = FaultRow(fault="F04", injected="both engines killed", recovery_ceiling_s=restart_s + 3.0)
    with pair.switched(without), under_load(pair, expected, row):
        victims = pair.pids("engine")
        for victim in victims:
            kill(victim)
        # For a moment the router still takes itself for ready: it has to know an engine that is there.
        row.recovery_s = wait_until(lambda: bool(set(pair.known_engines()) - set(victims)) and pair.is_ready(), 120)
    row.note = f"an engine's restart took {restart_s:.1f} s"
    judge(report, row, pair, without, may_refuse=True)


@pytest.mark.faults
@pytest.mark.parametrize("without", MIGRATION)
def test_f05_an_engine_killed_every_five_seconds(pair, expected, report, without):
    """For two minutes, as often as the other one is up."""
    row = FaultRow(fault="F05", injected="an engine killed every 5 s")
    with pair.switched(without):
        num_kills = kill_again_and_again(
            pair, expected, row, lambda: 5.0, num_kills=3 if without else 24, within_s=120.0
        )
    row.note = f"{num_kills} kills"
    judge(report, row, pair, without)


@pytest.mark.faults
def test_a_hundred_kills_under_twelve_mixed_streams(pair, expected, report):
    row, draw = FaultRow(fault="kills", injected="engines killed at random moments"), random.Random(5)
    num_kills = kill_again_and_again(
        pair, expected, row, lambda: draw.uniform(0.5, 4.0), num_kills=100, num_streams=12, whole_per_s=0.0
    )
    row.note = f"{num_kills} kills, float32"
    judge(report, row, pair)


@pytest.mark.faults
@pytest.mark.parametrize("deterministic", [True, None])
def test_twenty_kills_in_bfloat16(host, model, report, deterministic):
    """With `deterministic` no token may differ; without it, the number of streams that do is only reported."""
    name = "bfloat16-deterministic" if deterministic else "bfloat16"
    service = FaultyService(host, name, [model.args(dtype="bfloat16", deterministic=deterministic)])
    bodies = {number: request_body(number, max_tokens=model.num_tokens) for number in range(12)}
    expected = record_answers(service.url, bodies)
    row, draw = FaultRow(fault="kills", injected="engines killed at random moments"), random.Random(6)
    num_kills = kill_again_and_again(
        service, expected, row, lambda: draw.uniform(0.5, 4.0), num_kills=20, num_streams=12, whole_per_s=0.0
    )
    row.note = f"{num_kills} kills, {name}"
    if not deterministic:
        row.note += f": {row.wrong} of {row.sent} diverged"
        row.exact, row.wrong = row.exact + row.wrong, 0
    judge(report, row, service)
    service.delete()
