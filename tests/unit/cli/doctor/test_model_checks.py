import json
import mmap
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from rayinfer import register_predictor
from rayinfer.config import engine_config
from rayinfer.predictors.registered import unregister_predictor
from rayinfer.predictors.runners.fused_convolutions import FusedConvolution
from rayinfer.protocols import TensorSpec
from rayinfer_deployments.cli import build_application
from rayinfer_deployments.cli.doctor.model_checks import engine_checks
from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel, Expectations, open_model
from rayinfer_deployments.cli.doctor.model_checks.checklist import CHECKS, check_model
from rayinfer_deployments.cli.doctor.model_checks.execution_checks import judge_agreement
from rayinfer_deployments.cli.doctor.model_checks.sample_requests import SampleRequests
from rayinfer_deployments.cli.doctor.model_checks.service_checks import check_cache_and_errors
from support.fakes.fake_runner import FakeRunner, item_request, predictor_engine
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_encoders import make_tiny_encoder, save_sentence_layout
from support.tiny_models.tiny_images import save_classifier

NAME = "a-model-to-be-checked"
SERVED = Expectations(request_timeout_s=60.0, prediction_cache_bytes=2**20)
ALL_NAMES = {*CHECKS, "cache", "error handling"}


@pytest.fixture
def checked():
    """Check a function or module of one tensor by one of the checks."""

    def check(factory, name, expectations=SERVED, size=3, **settings):
        spec = TensorSpec(name="x", datatype="FP32", shape=(-1, size))
        register_predictor(NAME, factory, inputs=[spec], outputs=[replace(spec, name="y")])
        with open_model(engine_config(model=NAME, **settings), expectations) as model:
            return CHECKS[name](model)

    yield check
    unregister_predictor(NAME)


@pytest.fixture
def served():
    """Check a function by the checks that need a service."""

    async def check(function, expectations=SERVED):
        spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
        register_predictor(NAME, lambda: function, inputs=[spec], outputs=[replace(spec, name="y")])
        with open_model(engine_config(model=NAME), expectations) as model:
            cache, errors = await check_cache_and_errors(model)
        return {"cache": cache, "error handling": errors}

    yield check
    unregister_predictor(NAME)


class Trained(torch.nn.Module):
    """A module that stays in training mode."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def eval(self):
        return self

    def forward(self, x):
        return self.linear(x)


class Recording(torch.nn.Module):
    """A module that records gradients whatever its caller wants."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        with torch.inference_mode(False), torch.enable_grad():
            return self.linear(x.clone()).detach()


def double(x):
    return 2 * x


def test_a_module_in_training_mode_is_found(checked):
    found = checked(Trained, "eval mode")
    assert found.verdict == "fail"
    assert "1 Trained" in found.reason


def test_a_function_that_drops_numbers_out_is_found(checked):
    found = checked(lambda: lambda x: torch.nn.functional.dropout(x + 1, 0.5, training=True), "eval mode")
    assert found.verdict == "fail"
    assert "differ" in found.reason


def test_gradients_that_are_recorded_are_found(checked):
    assert checked(Recording, "inference mode").verdict == "fail"


def test_modules_in_order_pass_both_checks_of_modes(checked):
    assert checked(lambda: double, "eval mode").verdict == "pass"
    unregister_predictor(NAME)
    assert checked(lambda: double, "inference mode").verdict == "pass"


def test_a_slow_first_request_is_found(checked):
    calls = []

    def load_at_first(x):
        calls.append(1)
        time.sleep(0.5 if len(calls) == 1 else 0)
        return x

    assert checked(lambda: load_at_first, "warm-up").verdict == "fail"


def test_batches_that_are_slower_than_their_items_are_found():
    runner = FakeRunner(each_s=1.0, sleep=lambda seconds: time.sleep(0.0003 * (seconds - 1) ** 2))
    engine = predictor_engine(runner, target_step_ms=10_000, max_wait_ms=0)
    model = CheckedModel(
        config=engine_config(model=NAME),
        folder=None,
        registered=None,
        engine=engine,
        samples=FakeSamples(),
        expectations=SERVED,
    )
    found = engine_checks.check_batching(model)
    assert found.verdict == "fail"
    assert "as fast as one by one" in found.reason


class FakeSamples(SampleRequests):
    """Requests of the fake runner, all of two tokens."""

    def __init__(self):
        self.takes_text = True

    def of_tokens(self, num_tokens, number=0):
        return item_request("", [number % 7, 1])

    longest = SampleRequests.short


def test_a_model_far_below_the_peak_rate_is_found(checked):
    weights = torch.rand(500, 500) / 500

    def waits(x):
        time.sleep(0.2)
        for _ in range(20):
            x = x @ weights
        return x

    found = checked(lambda: waits, "optimised form", size=500)
    assert found.verdict == "fail"
    assert "GFLOP/s" in found.reason


def test_too_little_memory_is_found(checked):
    found = checked(lambda: double, "memory", Expectations(memory_limit_bytes=2**20))
    assert found.verdict == "fail"
    assert "of 1 MiB (as given)" in found.reason


def test_memory_that_grows_is_found(checked):
    kept = []

    def keeps(x):
        fresh = mmap.mmap(-1, 2**25)  # the allocator might return freed pages, which are resident
        fresh.write(b"x" * 2**25)
        kept.append(fresh)
        return x

    found = checked(lambda: keeps, "memory")
    assert found.verdict == "fail"
    assert "only grow" in found.remedy


def test_more_threads_than_cores_are_found(checked):
    num_threads = torch.get_num_threads()
    try:
        assert checked(lambda: double, "threads", num_threads=512).verdict == "fail"
    finally:
        torch.set_num_threads(num_threads)


def test_numbers_that_are_not_finite_are_found(checked):
    found = checked(lambda: lambda x: x / 0, "dtype")
    assert found.verdict == "fail"
    assert "not finite" in found.reason


def test_a_time_limit_below_the_longest_input_is_found(checked):
    assert checked(lambda: double, "timeouts", Expectations(request_timeout_s=1e-9)).verdict == "fail"
    unregister_predictor(NAME)
    found = checked(lambda: double, "timeouts", Expectations())
    assert (found.verdict, found.remedy[:17]) == ("warn", "--request-timeout")


def test_a_quantization_that_changes_answers_is_found():
    draw = np.random.default_rng(0)
    exact = draw.standard_normal((64, 8)).astype(np.float32)
    spoiled = exact * np.array([1, 8, 1, 1, 1, 1, 1, 1], np.float32)  # one wrong scale
    for is_classifier in (False, True):
        assert judge_agreement("quantization", "int8", exact, exact, is_classifier=is_classifier).verdict == "pass"
        found = judge_agreement("quantization", "int8", spoiled, exact, is_classifier=is_classifier)
        assert found.verdict == "fail", found


async def test_answers_that_change_are_found(served):
    calls = []

    def counts(x):
        calls.append(1)
        return x + len(calls)

    results = await served(counts)
    assert results["cache"].verdict == "fail"


async def test_an_input_that_ends_the_engine_is_found(served):
    def bursts(x):
        if not x.numel():
            raise MemoryError
        return x

    results = await served(bursts)
    assert results["cache"].verdict == "warn"  # what code of one's own has computed is not kept
    assert results["error handling"].verdict == "fail"
    assert "a tensor without numbers" in results["error handling"].reason


@pytest.fixture
def embedder(tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    save_sentence_layout(tmp_path)
    return tmp_path


def test_a_tiny_encoder_is_checked_from_the_command_line(embedder):
    command = ["doctor", "--model", str(embedder), "--json", "--num-threads", "1", "--request-timeout", "60"]
    result = CliRunner().invoke(build_application(), [*command, "--quantization", "int8"])
    found = {each["name"]: each for each in json.loads(result.stdout)}
    assert set(found) == ALL_NAMES
    assert result.exit_code == (1 if any(each["verdict"] == "fail" for each in found.values()) else 0)
    for name in ("eval mode", "inference mode", "memory", "dtype", "timeouts", "quantization", "cache"):
        assert found[name]["verdict"] == "pass", found[name]
    assert found["error handling"]["verdict"] == "pass", found["error handling"]


def test_fused_convolutions_are_in_eval_mode_and_counted(tmp_path):
    original = save_classifier(tmp_path, "ResNet")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        original(torch.zeros(1, 3, 32, 32))
    with open_model(engine_config(model=str(tmp_path)), SERVED) as model:
        assert any(isinstance(module, FusedConvolution) for module in model.modules)
        found = {name: CHECKS[name](model) for name in ("eval mode", "optimised form")}
    assert found["eval mode"].verdict == "pass", found["eval mode"]
    assert f"a step has {counter.get_total_flops() / 1e6:.2g} MFLOP" in found["optimised form"].reason


def test_the_exit_code_is_1_where_a_check_fails():
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
    register_predictor(NAME, lambda: double, inputs=[spec], outputs=[replace(spec, name="y")])
    try:
        result = CliRunner().invoke(build_application(), ["doctor", "--model", NAME, "--memory-limit", "0.001"])
    finally:
        unregister_predictor(NAME)
    assert result.exit_code == 1
    assert "a smaller model" in " ".join(result.stdout.split())


def test_a_model_that_generates_is_checked_too(tmp_path):
    settings = {"num_threads": 1, "num_kv_blocks": 200, "enable_prefix_caching": False}
    config = engine_config(model=str(make_tiny_llama(tmp_path)), **settings)
    found = {result.name: result for result in check_model(config, SERVED)}
    assert set(found) == ALL_NAMES
    for name in ("eval mode", "inference mode", "memory", "timeouts", "error handling"):
        assert found[name].verdict == "pass", found[name]
    assert found["cache"].verdict == "warn"  # as the prefixes of prompts are not kept
