"""A short soak test of a tiny engine, and the faults that one would find."""

import itertools
import json
from dataclasses import asdict, replace

import pytest

from rayinfer.benchmark.gpu.soak.ledger import Ledger
from rayinfer.benchmark.gpu.soak.memory import MemoryReading
from rayinfer.benchmark.gpu.soak.random_requests import RandomRequests
from rayinfer.benchmark.gpu.soak.run import TINY, run_soak
from rayinfer.outputs import Logprob, TokenDelta
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams

READING = MemoryReading(elapsed_s=0.0, allocated_bytes=1 << 30, device_used_bytes=2 << 30, host_resident_bytes=1 << 30)
DESCRIPTION = ModelDescription(name="tiny", max_model_len=64, vocab_size=100, created=0)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_tiny_engine_passes(overlaps, tmp_path):
    lines = []
    report = run_soak(
        tmp_path,
        lines.append,
        seconds=1.5,
        scale=TINY,
        interrupt_every_s=0.05,
        settings={"async_scheduling": overlaps},
        clock=itertools.count(0.0, 0.005).__next__,  # 300 steps
    )
    assert report.problems == []
    assert report.requests == sum(report.finished.values()) > 20
    assert {"length", "abort"} <= report.finished.keys()
    assert report.preemptions > 0
    assert set(report.interruptions) == {"pause", "sleep 0", "sleep 1", "sleep 2"}
    assert len(report.memory) == sum(line.startswith("round ") for line in lines) == 5
    json.dumps(asdict(report))


def test_a_load_that_fails_is_a_problem_of_a_report(tmp_path):
    def say(line):
        if line.startswith("round "):
            raise RuntimeError("the device is lost")

    report = run_soak(tmp_path, say, seconds=0.1, scale=TINY)
    assert report.problems == ["RuntimeError: the device is lost"]
    assert report.requests > 0


def test_requests_are_the_same_for_a_seed_and_fit_the_engine():
    one, other = (RandomRequests(DESCRIPTION, seed=4) for _ in range(2))
    requests = [one.draw() for _ in range(300)]
    assert requests == [other.draw() for _ in range(300)]
    assert all(len(each.prompt_token_ids) + each.sampling_params.max_tokens <= 64 for each in requests)
    assert {each.sampling_params.temperature == 0 for each in requests} == {False, True}
    assert sum(each.sampling_params.top_p < 1 for each in requests) > 30
    assert sum(each.sampling_params.has_penalties for each in requests) > 30


def ledger_with(**settings):
    ledger = Ledger(100, (0,))
    params = SamplingParams(max_tokens=3, ignore_eos=True, **settings)
    ledger.submit(GenerationRequest(request_id="a", prompt_token_ids=[1, 2], sampling_params=params))
    return ledger


def test_a_correct_request_is_no_problem():
    ledger = ledger_with(logprobs=0)
    ledger.apply(TokenDelta("a", 0, [5], [{5: Logprob(-1.0, 1)}]))
    ledger.apply(TokenDelta("a", 1, [6, 7], [{6: Logprob(-1.0, 1)}, {7: Logprob(-2.0, 3)}], "length"))
    assert (ledger.problems, ledger.open_ids, dict(ledger.finished)) == ([], [], {"length": 1})


def test_an_abort_counts_by_the_engines_finish_reason():
    for delta, ends, num_problems in (
        (TokenDelta("a", 0, [], None, "abort"), {"abort": 1}, 0),
        (TokenDelta("a", 0, [5, 6, 7], None, "length"), {"length": 1}, 0),
        (None, {"abort": 1}, 1),
    ):
        ledger = ledger_with()
        ledger.abort("a", delta)
        assert (dict(ledger.finished), len(ledger.problems)) == (ends, num_problems)


@pytest.mark.parametrize(
    ("delta", "problem"),
    [
        (TokenDelta("b", 0, [5]), "b: 1 tokens for a finished request"),
        (TokenDelta("a", 1, [5]), "a: token 1 follows 0 tokens"),
        (TokenDelta("a", 0, [100]), "a: tokens [100] are not in the vocabulary"),
        (TokenDelta("a", 0, [5], None, "length"), "a: ended with 'length' after 1 tokens"),
        (TokenDelta("a", 0, [5], None, "stop"), "a: ended with 'stop' after 1 tokens"),
        (TokenDelta("a", 0, [], None, "timeout"), "a: ended with 'timeout'"),
        (TokenDelta("a", 0, [5, 6, 7], None, "error"), "a: ended with 'error'"),
    ],
)
def test_every_wrong_output_is_a_problem(delta, problem):
    ledger = ledger_with()
    ledger.apply(delta)
    (found,) = ledger.problems
    assert found.startswith(problem)


@pytest.mark.parametrize("positions", [None, [{6: Logprob(-1.0, 1)}], [{5: Logprob(float("nan"), 1)}]])
def test_log_probabilities_that_are_missing_or_wrong_are_a_problem(positions):
    ledger = ledger_with(logprobs=0)
    ledger.apply(TokenDelta("a", 0, [5], positions))
    assert len(ledger.problems) == 1


def test_memory_that_grows_is_a_leak():
    assert READING.leaks_against(READING) == []
    grown = replace(READING, allocated_bytes=READING.allocated_bytes + (32 << 20))
    assert grown.leaks_against(READING) == ["allocated_bytes grew by 32 MiB, from 1024 MiB"]
    assert READING.leaks_against(grown) == []
