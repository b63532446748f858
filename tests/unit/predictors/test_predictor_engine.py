"""Predictor engine on a fake runner: ends of items, failures, states and counters."""

import itertools
import random
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest
import safetensors.numpy as safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from rayinfer.config import engine_config
from rayinfer.errors import (
    BadImage,
    ConfigError,
    EngineDead,
    InvalidParameter,
    PromptTooLong,
    TaskNotServed,
    WrongEngineState,
)
from rayinfer.prediction_outputs import output_numbers
from rayinfer.predictors.build_engine import check_predictor_settings
from rayinfer.protocols import GenerationRequest, Pause, Resume, Sleep, Wake
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_runner import (
    GUILTY,
    NAN,
    OUT_OF_MEMORY,
    FakeRunner,
    expected_numbers,
    item_request,
    predictor_engine,
)
from support.fakes.virtual_time import FakeClock


def run_to_end(engine):
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
    return {delta.request_id: delta for delta in deltas}


def started(**settings):
    runner = FakeRunner()
    engine = predictor_engine(runner, **settings)
    runner.batches.clear()
    return engine, runner


def test_each_item_gets_its_numbers_in_one_delta_without_tokens():
    engine, runner = started()
    for number in range(5):
        engine.add_request(item_request(f"r{number}", [number, 7]))
    ends = run_to_end(engine)
    assert runner.batches == [5]
    for number in range(5):
        delta = ends[f"r{number}"]
        assert (delta.finish_reason, delta.token_ids) == ("stop", [])
        assert output_numbers(delta.prediction).tolist() == expected_numbers([number, 7]).tolist()


def test_the_size_of_steps_does_not_depend_on_what_else_takes_the_cores_at_the_start():
    found = []
    for slowdown in (1, 20):
        clock, runs = FakeClock(), itertools.count()

        def take(seconds, clock=clock, runs=runs, slowdown=slowdown):
            clock.now += seconds * (slowdown if next(runs) % 3 else 1)

        engine = predictor_engine(FakeRunner(base_s=0.001, each_s=0.002, sleep=take), clock=clock)
        found.append(engine.description.max_num_batched_tokens)
    assert found[1] == pytest.approx(found[0], rel=0.1)


def test_named_tensors_go_in_and_come_out_as_safetensors():
    engine, _ = started()
    given = safetensors.save({"x": np.arange(6, dtype=np.int64).reshape(2, 3)})
    engine.add_request(item_request("r", (), task="infer", tensors=given))
    result = safetensors.load(run_to_end(engine)["r"].prediction.data)
    assert result["x"].tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("token", [GUILTY, NAN])
def test_the_item_at_fault_alone_ends_with_an_error(token):
    engine, runner = started()
    for number in range(32):
        engine.add_request(item_request(f"r{number}", [token if number == 13 else number]))
    ends = run_to_end(engine)
    failed = [name for name, delta in ends.items() if delta.finish_reason == "error"]
    assert failed == ["r13"]
    assert ends["r13"].prediction.error
    assert ends["r13"].prediction.data == b""
    assert len(ends) == 32
    assert len(runner.batches) <= 11  # 2 log2 32 smaller ones


def test_a_batch_in_which_all_items_are_at_fault_leaves_a_working_engine_alive():
    engine, _ = started()
    for number in range(3):
        engine.add_request(item_request(f"r{number}", [GUILTY]))
    assert {delta.finish_reason for delta in run_to_end(engine).values()} == {"error"}
    engine.add_request(item_request("good"))
    assert run_to_end(engine)["good"].finish_reason == "stop"


def test_an_engine_that_computes_nothing_any_more_ends():
    engine, runner = started()
    runner.is_broken = True
    engine.add_request(item_request("r"))
    with pytest.raises(EngineDead, match="whatever they compute"):
        engine.step()
    with pytest.raises(EngineDead):
        engine.check_alive()


def test_a_lack_of_memory_ends_the_engine_and_no_item_is_blamed():
    engine, _ = started()
    engine.add_request(item_request("r", [OUT_OF_MEMORY]))
    with pytest.raises(MemoryError):
        engine.step()


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (item_request("r", range(101)), PromptTooLong, "maximum context length is 100 tokens. However, your input has"),
        (item_request("r", [256]), InvalidParameter, "token ids from 0 to 255, got 256"),
        (item_request("r", [-1]), InvalidParameter, "token ids from 0 to 255"),
        (item_request("r", []), InvalidParameter, "a text, an image or tensors"),
        (item_request("r", [1], image=b"x"), InvalidParameter, "one of them alone"),
        (item_request("r", [], image=b"x"), InvalidParameter, "takes no images"),
        (item_request("r", [], task="infer", tensors=b"garbage"), InvalidParameter, "tensors cannot be read"),
        (item_request("r", task="score"), TaskNotServed, "does embed, infer, not score"),
        (item_request("r", num_first_tokens=3), InvalidParameter, "num_first_tokens must be 0 to 2, got 3"),
        (item_request("r", priority=11), InvalidParameter, "priority"),
        (
            GenerationRequest(request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams()),
            InvalidParameter,
            "does not generate",
        ),
    ],
)
def test_items_that_cannot_be_computed_are_refused(request_, error, message):
    engine, _ = started()
    with pytest.raises(error, match=message):
        engine.add_request(request_)
    assert not engine.has_unfinished_requests


def test_a_request_id_in_use_is_refused():
    engine, _ = started()
    engine.add_request(item_request("r"))
    with pytest.raises(InvalidParameter, match="in use"):
        engine.add_request(item_request("r"))


def test_an_aborted_item_ends_and_the_others_are_computed():
    engine, runner = started()
    for name in "abc":
        engine.add_request(item_request(name))
    assert engine.abort("b").finish_reason == "abort"
    assert engine.abort("b") is None
    assert set(run_to_end(engine)) == {"a", "c"}
    assert runner.batches == [2]


def test_overdue_items_end_with_timeout_while_the_engine_is_paused_too():
    clock = FakeClock()
    engine = predictor_engine(FakeRunner(), clock=clock)
    engine.add_request(item_request("short", timeout_s=1.0))
    engine.add_request(item_request("long"))
    assert engine.control(Pause()) == "paused"
    clock.now += 2
    assert [(delta.request_id, delta.finish_reason) for delta in engine.step()] == [("short", "timeout")]
    assert not engine.can_advance
    assert engine.control(Resume()) == "running"
    assert run_to_end(engine)["long"].finish_reason == "stop"


def test_an_item_that_would_come_too_late_times_out_before_it_waits():
    clock = FakeClock()
    runner = FakeRunner(base_s=1.0, sleep=lambda seconds: setattr(clock, "now", clock.now + seconds))
    engine = predictor_engine(runner, clock=clock)
    engine.add_request(item_request("late", timeout_s=0.5))
    engine.add_request(item_request("in time", timeout_s=1.5))
    assert {name: delta.finish_reason for name, delta in run_to_end(engine).items()} == {
        "late": "timeout",
        "in time": "stop",
    }


def test_a_sleeping_engine_gives_its_weights_back_and_loads_them_when_it_wakes():
    engine, runner = started()
    assert engine.control(Sleep(1)) == "asleep"
    assert not runner.is_closed
    engine.control(Wake())
    assert engine.control(Sleep(2)) == "asleep"
    assert runner.is_closed
    engine.add_request(item_request("r"))
    assert engine.step() == []
    with pytest.raises(WrongEngineState):
        engine.control(Pause())
    assert engine.control(Wake()) == "running"
    assert run_to_end(engine)["r"].finish_reason == "stop"


def test_counters_have_tokens_steps_and_ends():
    engine, _ = started()
    planned = []
    engine.on_plan = planned.append
    engine.add_request(item_request("a", [1, 2, 3]))
    engine.add_request(item_request("b", [GUILTY]))
    assert (engine.stats.num_running, engine.stats.num_waiting) == (0, 2)
    run_to_end(engine)
    stats = engine.stats
    assert (stats.num_steps_total, stats.prompt_tokens_total, stats.step_tokens_total) == (1, 4, 4)
    assert stats.requests_finished_total == {"stop": 1, "error": 1}
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert planned == [4]


def test_a_traced_item_has_its_events_with_its_end():
    engine, _ = started()
    engine.add_request(item_request("r", trace=True))
    assert [event.name for event in run_to_end(engine)["r"].trace] == ["queued", "admitted", "finished"]


def test_steps_are_measured_before_there_are_requests():
    clock = FakeClock()
    runner = FakeRunner(base_s=0.02, sleep=lambda seconds: setattr(clock, "now", clock.now + seconds))
    engine = predictor_engine(runner, clock=clock, target_step_ms=1000, max_num_batched_tokens=800)
    # Of 1, 8, 64, 500 and 800 tokens, each five times and the first once more.
    assert runner.batches == [1] * 16 + [5] * 5 + [8] * 5
    assert engine.description.max_num_batched_tokens == 800
    assert engine.description.max_model_len == 100


class FakeImages:
    def __init__(self):
        self.futures = {}
        self.is_closed = False

    def submit(self, image):
        return self.futures.setdefault(image, Future())

    def close(self):
        self.is_closed = True


def test_images_wait_for_their_pixels_and_hold_no_other_item_up():
    images, runner = FakeImages(), FakeRunner(image_size=2)
    engine = predictor_engine(runner, images)
    ready = []
    engine.on_ready = lambda: ready.append(True)
    for name in ("slow", "broken", "quick", "aborted"):
        engine.add_request(item_request(name, (), task="classify", image=name.encode()))
    assert engine.stats.num_waiting == 4
    assert engine.step() == []
    assert not engine.can_advance
    images.futures[b"quick"].set_result(np.full((2, 2, 3), 9, np.uint8))
    images.futures[b"broken"].set_exception(BadImage("the image is broken", "image"))
    assert len(ready) == 2
    assert engine.can_advance
    assert engine.abort("aborted").finish_reason == "abort"
    assert {delta.request_id: delta.finish_reason for delta in engine.step()} == {"quick": "stop", "broken": "error"}
    images.futures[b"slow"].set_result(np.full((2, 2, 3), 7, np.uint8))
    assert output_numbers(run_to_end(engine)["slow"].prediction).tolist() == [7, 7, 7]
    engine.exit()
    assert images.is_closed
    assert runner.is_closed


def test_an_image_that_takes_too_long_times_out():
    clock, images = FakeClock(), FakeImages()
    engine = predictor_engine(FakeRunner(image_size=2), images, clock)
    engine.add_request(item_request("r", (), task="classify", image=b"x", timeout_s=1.0))
    clock.now += 1
    assert [delta.finish_reason for delta in engine.step()] == ["timeout"]
    images.futures[b"x"].cancel()
    assert not engine.has_unfinished_requests
    assert engine.step() == []


@pytest.mark.parametrize(
    "settings",
    [{"num_kv_blocks": 9}, {"kv_cache_dtype": "int8"}, {"engine": "static"}, {"async_scheduling": True}],
)
def test_settings_of_a_kv_cache_are_refused(settings):
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))}: 'm' does not generate"):
        check_predictor_settings(engine_config(model="m", **settings))


def test_several_ranks_are_refused():
    with pytest.raises(ConfigError, match="one rank, got 2"):
        check_predictor_settings(engine_config(model="m", tensor_parallel_size=2))


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_every_item_ends_exactly_once_whatever_happens(seed):
    draw, clock = random.Random(seed), FakeClock()

    def run_for(seconds):
        clock.now += seconds * (100 if draw.random() < 0.1 else 1)

    runner = FakeRunner(base_s=0.02, each_s=0.001, sleep=run_for)
    engine = predictor_engine(runner, clock=clock, max_num_seqs=draw.choice([1, 3, 256]))
    expected, ends, reasons = {}, Counter(), {}

    def record(deltas):
        ends.update(delta.request_id for delta in deltas)
        reasons.update({delta.request_id: delta.finish_reason for delta in deltas})

    for number in range(draw.randint(1, 60)):
        clock.now += draw.choice([0, 0, 0.001, 0.05])
        name = f"r{number}"
        expected[name] = draw.choices([1, GUILTY, NAN], [20, 1, 1])[0]
        timeout_s = draw.uniform(0, 0.3) if draw.random() < 0.1 else None
        engine.add_request(item_request(name, [expected[name]], timeout_s=timeout_s, priority=draw.randint(-1, 1)))
        if draw.random() < 0.1 and (delta := engine.abort(draw.choice(list(expected)))) is not None:
            record([delta])
        if draw.random() < 0.1:
            engine.control(draw.choice([Pause(), Sleep(2)]))
            record(engine.step())
            engine.control(Wake())
            engine.control(Resume())
        if draw.random() < 0.3:
            record(engine.step())
    while engine.has_unfinished_requests:
        clock.now += engine.wait_s
        record(engine.step())
    assert ends == Counter(dict.fromkeys(expected, 1))
    for name, reason in reasons.items():
        assert reason in (("stop",) if expected[name] == 1 else ("error",)) + ("abort", "timeout")
