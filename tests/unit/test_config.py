import os
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

import rayinfer
import rayinfer_kernels
from rayinfer.config import (
    DEFAULT_MODEL,
    EngineConfig,
    KernelPath,
    cache_folder,
    engine_config,
    kernel_path,
    kv_store_folder,
    shared_memory_folder,
)
from rayinfer.errors import ConfigError


def test_the_defaults_serve_the_embedded_model():
    config = engine_config()
    assert config.model == DEFAULT_MODEL == "smollm2-135m"
    assert (config.block_size, config.enable_prefix_caching) == (None, True)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_sequences": 5},
        {"model": ""},
        {"dtype": "int8"},
        {"max_model_len": 1},
        {"max_num_seqs": 0},
        {"max_num_seqs": 10_000},
        {"max_num_batched_tokens": 0},
        {"max_cudagraph_capture_size": 0},
        {"max_cudagraph_capture_size": 64, "enforce_eager": True},
        {"block_size": 12},
        {"block_size": 512},
        {"num_kv_blocks": 0},
        {"kv_cache_memory_bytes": 0},
        {"kv_cache_memory_bytes": 1 << 30, "num_kv_blocks": 5},
        {"kv_offload_bytes": -1},
        {"memory_fraction": 0.0},
        {"memory_fraction": 1.5},
        {"memory_fraction": float("nan")},
        {"seed": -1},
        {"num_threads": 0},
        {"num_threads": 1_000_000},
        {"tensor_parallel_size": 0},
        {"pipeline_parallel_size": 0},
        {"quantization": "int3"},
        {"kv_cache_dtype": "int4"},
        {"generation_config": ""},
        {"override_generation_config": {"top_p": 2}},
        {"override_generation_config": ["top_p"]},
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_named_in_one_line(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))) as caught:
        engine_config(**settings)
    assert "\n" not in str(caught.value)


def test_all_wrong_settings_are_named_together_with_their_values():
    with pytest.raises(ConfigError, match=r"block_size: .*, got 1; seed: .*, got -1; surprise: .*, got True"):
        engine_config(block_size=1, seed=-1, surprise=True)
    with pytest.raises(ConfigError) as caught:
        engine_config(dtype="x" * 10_000)
    assert len(str(caught.value)) < 250


def test_a_config_does_not_change():
    with pytest.raises(ValidationError):
        EngineConfig().block_size = 32


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"RAYINFER_CACHE": "/somewhere", "XDG_CACHE_HOME": "/cache"}, "/somewhere"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/rayinfer"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/rayinfer"),
        ({"RAYINFER_CACHE": "~/mine"}, "/home/me/mine"),
    ],
)
def test_the_cache_folder_follows_the_environment(environment, folder, monkeypatch):
    for name in ("RAYINFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_the_environment_names_the_kernels_unless_the_settings_do(monkeypatch):
    monkeypatch.delenv("RAYINFER_KERNELS", raising=False)
    assert (kernel_path(), kernel_path("avx2")) == ("native", "avx2")
    for value, path in {"avx512": "avx512", "auto": "native", "": "native"}.items():
        monkeypatch.setenv("RAYINFER_KERNELS", value)
        assert kernel_path("auto") == path
    assert kernel_path("portable") == "portable"
    monkeypatch.setenv("RAYINFER_KERNELS", "sse9")
    with pytest.raises(ConfigError, match=r"RAYINFER_KERNELS must be one of auto, native, .*, got 'sse9'"):
        kernel_path()
    assert EngineConfig().kernels == "auto"
    with pytest.raises(ConfigError, match="kernels: Input should be 'auto', 'native'"):
        engine_config(kernels="sse9")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_store_disk_gib": 1}, "need kv_store_gib"),
        ({"kv_store_gib": 1, "kv_store_folder": "f"}, "kv_store_folder needs kv_store_disk_gib"),
        ({"kv_store_persists": True}, "kv_store_persists needs kv_store_gib"),
        ({"kv_store_gib": 1, "enable_prefix_caching": False}, "kv_store_gib needs enable_prefix_caching"),
        ({"kv_store_gib": 1, "record_schedule": "f"}, "kv_store_gib and record_schedule exclude each other"),
        ({"kv_transfer": True}, "kv_transfer needs kv_store_gib"),
        ({"kv_store_gib": 0}, "kv_store_gib: Input should be greater than 0"),
    ],
)
def test_a_block_store_needs_memory_and_the_prefix_cache(settings, message):
    with pytest.raises(ConfigError, match=message):
        engine_config(**settings)


def test_folders_of_a_block_store_follow_the_environment(monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", "/cache")
    assert kv_store_folder() == Path("/cache/kv-store")
    monkeypatch.delenv("RAYINFER_SHARED_MEMORY", raising=False)
    assert shared_memory_folder() == Path(f"/dev/shm/rayinfer-{os.getuid()}")
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", "/dev/shm/mine")
    assert shared_memory_folder() == Path("/dev/shm/mine")


def test_every_kernel_path_can_be_named():
    assert set(get_args(KernelPath)) == {"auto", *rayinfer_kernels.KERNEL_PATHS}


def test_steps_overlap_on_one_rank_only():
    assert EngineConfig().async_scheduling is None
    assert EngineConfig(async_scheduling=True).async_scheduling
    assert EngineConfig(async_scheduling=False, tensor_parallel_size=2).async_scheduling is False
    with pytest.raises(ConfigError, match="async_scheduling must not be true with 4 ranks"):
        engine_config(async_scheduling=True, tensor_parallel_size=2, pipeline_parallel_size=2)


def test_a_wrong_override_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"^override_generation_config: top_p must lie in \(0, 1\], got 2, got "):
        engine_config(override_generation_config={"top_p": 2})


@pytest.mark.parametrize("key", ["temprature", "do_sample", "max_tokens"])
def test_an_override_without_an_effect_is_refused_with_the_keys_that_have_one(key):
    said = rf"^override_generation_config: '{key}': no such key, .*; there are temperature, top_p, .*max_new_tokens"
    with pytest.raises(ConfigError, match=said):
        engine_config(override_generation_config={key: 1, "top_p": 0.9})


def test_only_some_of_many_wrong_overrides_are_named():
    with pytest.raises(ConfigError, match="'k04' and 95 more: no such key") as failure:
        engine_config(override_generation_config={f"k{number:02}": 1 for number in range(100)})
    assert len(str(failure.value)) < 500


def test_a_config_takes_the_model_by_position():
    assert rayinfer.Config("folder", seed=3) == rayinfer.Config(model="folder", seed=3)
    assert rayinfer.Config() == EngineConfig()
    with pytest.raises(TypeError, match="twice"):
        rayinfer.Config("folder", model="other")
    with pytest.raises(TypeError, match="must be named, got 2"):
        rayinfer.Config("folder", "static")


def test_the_settings_have_nano_vllms_name_too():
    assert rayinfer.Config is EngineConfig
    assert "Config" in rayinfer.__all__


def test_nano_vllms_names_of_the_same_settings_are_taken():
    config = engine_config(kvcache_block_size=256, num_kvcache_blocks=40)
    assert config == engine_config(block_size=256, num_kv_blocks=40)
    assert engine_config(num_kvcache_blocks=-1) == engine_config()
    with pytest.raises(ConfigError, match=r"block_size: .*multiple of 8, got 12"):
        engine_config(kvcache_block_size=12)
    with pytest.raises(ConfigError, match="num_kv_blocks"):
        engine_config(num_kvcache_blocks=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization, .* is not supported: set memory_fraction"),
        ({"kvcache_block_size": 16, "block_size": 16}, "kvcache_block_size and block_size are the same setting"),
        ({"num_kvcache_blocks": 16, "num_kv_blocks": 16}, "num_kvcache_blocks and num_kv_blocks are the same setting"),
    ],
)
def test_other_names_that_cannot_be_followed_name_our_setting(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        engine_config(**settings)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**settings)
