import math
import random

import pytest

from rayinfer.planning.hardware import CARDS
from rayinfer.planning.model_footprint import footprint_of
from rayinfer.planning.queueing import Workload, engine_load, highest_rate
from rayinfer.planning.step_times import GPU, StepTimes

WORKLOAD = Workload(prompt_len=512, output_len=128, max_num_seqs=256, max_num_batched_tokens=8192)


@pytest.fixture(scope="module")
def times():
    return StepTimes(model=footprint_of("Qwen3-8B"), hardware=CARDS["H100"], efficiency=GPU)


def test_an_idle_engine_gives_the_times_of_one_request(times):
    load = engine_load(times, WORKLOAD, 1e-3, 256)
    assert load is not None
    assert load.ttft_mean_s == pytest.approx(times.prefill_s(512), rel=0.01)
    assert load.itl_s == pytest.approx(times.decode_step_s(1, WORKLOAD.mean_context), rel=0.01)


def test_running_requests_follow_from_little_s_law(times):
    load = engine_load(times, WORKLOAD, 30, 256)
    assert load is not None
    assert load.num_running == pytest.approx(30 * 127 * load.itl_s, rel=1e-3)


def test_more_than_an_engine_serves_has_no_state(times):
    assert engine_load(times, WORKLOAD, 1 / times.prefill_s(512), 256) is None
    assert engine_load(times, WORKLOAD, 30, 2) is None


def test_the_highest_rate_keeps_both_objectives(times):
    best = highest_rate(times, WORKLOAD, 256, 1, 0.02)
    assert best is not None
    assert best.itl_s <= 0.02
    beyond = engine_load(times, WORKLOAD, 1.01 * best.requests_per_s, 256)
    assert beyond is None or beyond.itl_s > 0.02 or beyond.ttft_p95_s > 1
    assert highest_rate(times, WORKLOAD, 256, 1, 1e-4) is None


def test_a_simulation_of_steps_agrees_with_the_estimate(times):
    """Requests at random; each step has one prompt, if any waits, and a token of every running request."""
    chance = random.Random(5)
    rate, clock, arrivals, at = 25.0, 0.0, [], 0.0
    for _ in range(4000):
        at += chance.expovariate(rate)
        arrivals.append(at)
    waiting, running, ttfts, gaps = list(reversed(arrivals)), [], [], []
    while waiting or running:
        if not running and waiting[-1] > clock:
            clock = waiting[-1]
        prompt = waiting.pop() if waiting and waiting[-1] <= clock else None
        step_s = times.decode_step_s(max(1, len(running)), WORKLOAD.mean_context) if running else 0.0
        step_s += times.prefill_s(WORKLOAD.prompt_len) if prompt is not None else 0.0
        clock += step_s
        gaps += [step_s] * len(running)
        running = [left - 1 for left in running if left > 1]
        if prompt is not None:
            ttfts.append(clock - prompt)
            running.append(WORKLOAD.output_len - 1)
    load = engine_load(times, WORKLOAD, rate, 256)
    assert load is not None
    assert sum(gaps) / len(gaps) == pytest.approx(load.itl_s, rel=0.15)
    ttfts.sort()
    assert sum(ttfts) / len(ttfts) == pytest.approx(load.ttft_mean_s, rel=0.35)
    assert not math.isnan(load.ttft_p95_s)
