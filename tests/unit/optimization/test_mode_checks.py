from pathlib import Path

import pytest
import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
from rayinfer.optimization.mode_checks import (
    GPU_MODES,
    MEASURED,
    QUALITY_LIMITS,
    check_capability,
    check_device,
    check_quality,
    measured_model,
)

ALL = [(model, mode) for model, modes in MEASURED.items() for mode in modes]
TOO_MUCH = [(model, mode) for model, mode in ALL if MEASURED[model][mode] > QUALITY_LIMITS[mode]]


def test_a_mode_that_loses_too_much_is_refused_with_what_was_measured_and_how_to_allow_it():
    with pytest.raises(ConfigError, match=r"int4 .* 7\.3 % .* 5 % .* allow_inaccurate_quantization"):
        check_quality("int4", is_inaccuracy_allowed=False, measured={"stories15m": {"int4": 7.34}})
    check_quality("int4", is_inaccuracy_allowed=True, measured={"stories15m": {"int4": 7.34}})
    check_quality("int4", is_inaccuracy_allowed=False, measured={"stories15m": {"int4": 4.9}})


def test_every_embedded_model_was_measured_in_every_mode_that_has_a_limit():
    assert all(MEASURED[name].keys() == QUALITY_LIMITS.keys() for name in EMBEDDED_MODELS)


def test_a_mode_that_was_not_measured_is_refused_with_how_to_allow_and_measure_it():
    with pytest.raises(ConfigError, match=r"int8 .* has not been measured .* allow_inaccurate_quantization"):
        check_quality("int8", is_inaccuracy_allowed=False, measured={})
    check_quality("int8", is_inaccuracy_allowed=True, measured={})


@pytest.mark.parametrize(("model", "mode"), TOO_MUCH)
def test_a_model_is_refused_for_what_it_loses_itself(model, mode):
    loss = f"{MEASURED[model][mode]:.1f}".replace(".", r"\.")
    with pytest.raises(ConfigError, match=rf"{mode} .* {loss} % .*{model}.* allow_inaccurate_quantization"):
        check_quality(mode, is_inaccuracy_allowed=False, model=model)
    check_quality(mode, is_inaccuracy_allowed=True, model=model)


@pytest.mark.parametrize(("model", "mode"), [each for each in ALL if each not in TOO_MUCH])
def test_a_model_passes_with_what_it_hardly_loses_itself(model, mode):
    check_quality(mode, is_inaccuracy_allowed=False, model=model)


def test_two_models_are_judged_apart():
    measured = {"smollm2-135m": {"int4": 5.1}, "stories15m": {"int4": 4.9}}
    check_quality("int4", is_inaccuracy_allowed=False, measured=measured)
    check_quality("int4", is_inaccuracy_allowed=False, model="stories15m", measured=measured)
    with pytest.raises(ConfigError, match=r"5\.1 % worse than float32 \(smollm2-135m\)"):
        check_quality("int4", is_inaccuracy_allowed=False, model="smollm2-135m", measured=measured)


def test_a_model_that_was_not_measured_is_judged_by_another():
    check_quality("int4", is_inaccuracy_allowed=False)
    with pytest.raises(ConfigError, match=r"fp8 .* 3\.5 % .*smollm2-135m.* 3 %"):
        check_quality("fp8", is_inaccuracy_allowed=False)
    assert all(mode in QUALITY_LIMITS for mode in GPU_MODES)


def test_an_embedded_model_is_known_by_its_name_and_by_its_folder():
    folder = Path("/cache/smollm2-135m-b179c952-3")
    assert measured_model("smollm2-135m", Path("/elsewhere")) == "smollm2-135m"
    assert measured_model(str(folder), folder) == "smollm2-135m"
    assert measured_model("/cache/smollm2-135m-00000000-3", Path("/cache/smollm2-135m-00000000-3")) is None


@pytest.mark.parametrize(
    ("settings", "device", "message"),
    [
        ({"quantization": "fp8"}, "cpu", "quantization 'fp8' needs a GPU, and this engine runs on a cpu"),
        ({"kv_cache_dtype": "fp8"}, "cpu", "kv_cache_dtype 'fp8' needs a GPU"),
        ({"quantization": "int8"}, "cuda", "quantization 'int8' needs a CPU, and this engine runs on a cuda"),
        ({"kv_cache_dtype": "int8"}, "cuda", "kv_cache_dtype 'int8' needs a CPU"),
    ],
)
def test_numbers_of_few_bits_are_refused_where_they_are_not_computed_with(settings, device, message):
    with pytest.raises(ConfigError, match=message):
        check_device(EngineConfig(model="m", **settings), torch.device(device), torch.bfloat16)


def test_a_model_in_float32_has_no_cache_of_eight_bits_on_a_gpu():
    config = EngineConfig(model="m", dtype="float32", kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match=r"kv_cache_dtype 'fp8' needs a model in .* float16, this one is in float32"):
        check_device(config, torch.device("cuda"), torch.float32)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_as_it_came_runs_everywhere(device):
    check_device(EngineConfig(model="m"), torch.device(device), torch.bfloat16)


def test_eight_bits_run_on_the_cpu():
    check_device(
        EngineConfig(model="m", quantization="int8-dynamic", kv_cache_dtype="int8"), torch.device("cpu"), torch.bfloat16
    )


def test_a_gpu_without_such_numbers_is_refused_by_its_capability():
    with pytest.raises(ConfigError, match=r"quantization 'fp8' needs a GPU of compute capability 8\.9 .* has 8\.0"):
        check_capability("quantization", (8, 0))
    for capability in ((8, 9), (9, 0), (12, 0)):
        check_capability("quantization", capability)
