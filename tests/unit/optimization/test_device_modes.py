import pytest
import torch

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.optimization.device_modes import check_capability, check_device


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
