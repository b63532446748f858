"""Settings that follow the device: what they become on each kind, on every rank, and what is given stays."""

import inspect
import logging

import pytest
import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, engine_config
from rayinfer.credits import credits_of_each
from rayinfer.engine.build import build_engine
from rayinfer.engine.worker.device_defaults import CPU, CUDA
from rayinfer.engine.worker.resolved_config import describe_choice, resolve_config
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.pool_size import CPU_POOL_BYTES, count_kv_blocks
from rayinfer.outputs import Credits
from rayinfer.tensor_parallel import RankCoordinates
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SIZES = ("max_num_seqs", "max_num_batched_tokens", "memory_fraction", "max_cudagraph_capture_size")
BY_DEVICE = {*SIZES, "block_size", "async_scheduling"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


def sizes_of(config):
    return tuple(getattr(config, name) for name in SIZES)


@pytest.mark.parametrize(
    ("device", "settings", "sizes"),
    [
        ("cpu", {}, (64, 512, None, 0)),
        ("cuda", {}, (256, 8192, 0.9, 256)),
        ("cuda", {"enforce_eager": True}, (256, 8192, 0.9, 0)),
        ("cuda", {"max_num_seqs": 1000}, (1000, 8192, 0.9, 512)),
        ("cuda", {"max_num_seqs": 8, "memory_fraction": 0.5}, (8, 8192, 0.5, 8)),
        ("cuda", {"max_cudagraph_capture_size": 32}, (256, 8192, 0.9, 32)),
        ("cuda", {"max_num_batched_tokens": 100}, (256, 100, 0.9, 100)),
        ("cpu", {"max_num_seqs": 7, "max_num_batched_tokens": 99, "memory_fraction": 0.1}, (7, 99, 0.1, 0)),
    ],
)
def test_what_is_not_given_follows_the_device(device, settings, sizes):
    resolved = resolve_config(engine_config(**settings), device)
    assert sizes_of(resolved) == sizes
    assert resolved.num_rows == min(sizes[:2])
    assert resolve_config(resolved, device) == resolved


def test_static_engines_have_defaults_of_their_own_on_a_gpu():
    assert sizes_of(resolve_config(engine_config(), "cpu", is_static=True)) == (64, 512, None, 0)
    assert sizes_of(resolve_config(engine_config(), "cuda", is_static=True)) == (64, 2048, None, 64)


def test_resolving_leaves_all_other_settings_alone():
    config = engine_config(model="m", block_size=32, seed=9, num_kv_blocks=5, kv_cache_dtype="fp8")
    resolved = resolve_config(config, "cuda")
    assert resolved.model_dump(exclude=BY_DEVICE) == config.model_dump(exclude=BY_DEVICE)
    assert resolved.block_size == 32


@pytest.mark.parametrize(
    ("device", "settings", "is_async"),
    [
        ("cpu", {}, False),
        ("cpu", {"async_scheduling": True}, True),
        ("cuda", {}, True),
        ("cuda", {"async_scheduling": False}, False),
        ("cuda", {"tensor_parallel_size": 2}, False),
    ],
)
def test_blocks_and_overlapping_steps_follow_the_device_too(device, settings, is_async):
    resolved = resolve_config(engine_config(**settings), device)
    assert (resolved.block_size, resolved.async_scheduling) == (16, is_async)


@pytest.mark.parametrize(
    ("device", "settings", "choice"),
    [
        ("cpu", {}, "defaults of a CPU with 2 GiB of KV cache"),
        ("cuda", {}, "defaults of a GPU with memory_fraction 0.9"),
        ("cpu", {"num_kv_blocks": 9, "block_size": 16}, "given block_size, num_kv_blocks, the rest defaults of a CPU"),
        ("cuda", {"enforce_eager": True}, "given enforce_eager, the rest defaults of a GPU with memory_fraction 0.9"),
    ],
)
def test_what_was_given_and_what_follows_the_device_is_named(device, settings, choice):
    assert describe_choice(engine_config(**settings), device) == choice


def test_the_descriptions_of_the_settings_name_the_defaults():
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        text = f"(default by device: {getattr(CPU, name):,} on a CPU, {getattr(CUDA, name):,} on a GPU)"
        assert text in EngineConfig.model_fields[name].description
    fraction = f"(default by device: {CPU_POOL_BYTES >> 30} GiB in all on a CPU, {CUDA.memory_fraction} on a GPU)"
    assert fraction in EngineConfig.model_fields["memory_fraction"].description
    graphs = EngineConfig.model_fields["max_cudagraph_capture_size"].description
    assert f"max_num_seqs, at most {CUDA.max_cudagraph_capture_size}, on a GPU" in graphs


def test_every_default_by_device_belongs_to_a_setting_that_may_be_left_out():
    names = set(inspect.signature(type(CPU)).parameters)
    assert names == BY_DEVICE
    assert all(EngineConfig.model_fields[name].default is None for name in names)


class FakeGroup:
    """One rank of some, of which the others have sent these numbers."""

    def __init__(self, rank, of_others):
        self.coordinates = RankCoordinates(rank, 2, 1)
        self.of_others = of_others
        self.sent = []

    def reduce_min(self, values):
        self.sent.append(list(values))
        return [min(pair) for pair in zip(values, self.of_others, strict=True)]


def test_all_ranks_have_the_batch_sizes_of_rank_0s_device():
    config = engine_config(tensor_parallel_size=2)
    others = FakeGroup(0, [1 << 62, 1 << 62])
    assert sizes_of(resolve_config(config, "cuda", group=others)) == (256, 8192, 0.9, 256)
    first = FakeGroup(1, others.sent[0])
    assert sizes_of(resolve_config(config, "cpu", group=first)) == (256, 8192, None, 0)  # its memory is its own
    first = FakeGroup(1, [64, 512])
    assert sizes_of(resolve_config(config, "cuda", group=first)) == (64, 512, 0.9, 64)
    assert min(first.sent[0]) > 8192  # a rank that is not the first lowers nothing


def test_an_engine_reports_the_sizes_it_was_built_with_and_grants_credits_by_them(folder, caplog):
    caplog.set_level(logging.INFO, "rayinfer.engine")
    engine = build_engine(engine_config(model=str(folder), num_kv_blocks=100), folder)
    description = engine.description
    device = CUDA if torch.cuda.is_available() else CPU
    assert description.max_num_seqs == device.max_num_seqs
    assert description.max_num_batched_tokens == device.max_num_batched_tokens
    expected = Credits(device.max_num_seqs * 9 // 8, 1600, 2 * device.max_num_batched_tokens)
    assert credits_of_each(description, 1) == expected
    assert f"engine for {folder}: {description.capacity}" in caplog.messages
    engine.exit()


def test_an_engine_names_its_kernels_and_refuses_those_that_it_cannot_run(folder, monkeypatch):
    settings = {"model": str(folder), "num_kv_blocks": 16, "dtype": "float32"}
    engine = build_engine(engine_config(**settings), folder)
    on_a_gpu = torch.cuda.is_available()
    assert engine.description.kernels == ("triton" if on_a_gpu else rayinfer_kernels.cpu_kernels_status().name)
    device = engine.description.device
    sizes = f", {engine.description.kernels} kernels, {device}; given num_kv_blocks, the rest defaults of a CPU"
    assert engine.description.capacity.endswith(sizes.replace("CPU", "GPU") if on_a_gpu else sizes)
    engine.exit()
    # A name that no compiler knows, as that of another machine's path would be.
    monkeypatch.setitem(rayinfer_kernels.KERNEL_PATHS, "avx512", ("-march=no-such-isa",))
    if not on_a_gpu:
        with pytest.raises(ConfigError, match=r"kernels 'avx512' do not run on this machine: .*no-such-isa"):
            build_engine(engine_config(**settings, kernels="avx512"), folder)


def test_a_gpus_pool_is_a_share_of_what_steps_leave(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (11 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    config, cuda = resolve_config(engine_config(), "cuda"), torch.device("cuda")
    assert count_kv_blocks(config, 1 << 20, cuda, reserved_bytes=1 << 30) == 9 << 10
    assert count_kv_blocks(resolve_config(engine_config(), "cpu"), 1 << 20, torch.device("cpu")) == 2 << 10
