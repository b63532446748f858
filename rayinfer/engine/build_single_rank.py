"""Builds an engine of one rank: the whole model in this process, without distributed imports."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig
from rayinfer.engine.loop.encoder_decoder_engine import EncoderDecoderEngine
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.ranks.rank_coordinates import any_device, place_of
from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.worker.cpu_kernels import use_cpu_kernels
from rayinfer.engine.worker.worker import ModelPart, build_part
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.models.generation_config import default_sampling_params
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.optimization.mode_checks import check_device, check_quality, measured_model
from rayinfer.protocols import ModelDescription

_logger = logging.getLogger(__name__)


def build_one_rank_engine(config: EngineConfig, folder: Path, *, name: str | None = None) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned.

    Raises ConfigError where the settings ask for several ranks: `assembly.build_engine` builds those, too.
    """
    if (num_ranks := place_of(config, 0).world_size) > 1:
        raise ConfigError(f"an engine of one rank cannot be shared by {num_ranks}")
    model = check_settings(config, folder)
    defaults = default_sampling_params(config, folder)
    part = build_part(config, folder)
    return engine_of(model, part, part.executor, name, defaults)


def check_settings(config: EngineConfig, folder: Path) -> ModelConfig:
    """Raise ConfigError for what this machine's devices or the model cannot do; returns the model's own settings."""
    model = read_model_config(folder)
    dtype = torch_dtype(config.dtype, model)
    check_device(config, any_device(), dtype)
    _check_quality(config, folder)
    _check_determinism(config, dtype)
    return model


def engine_of(
    model: ModelConfig, part: ModelPart, executor: Executor, name: str | None, defaults: Mapping[str, Any]
) -> Engine:
    """Give an executor its scheduler, and both their engine."""
    config = part.config
    caches_prefixes = config.enable_prefix_caching
    block_manager = BlockManager(part.num_blocks, config.block_size, enable_prefix_caching=caches_prefixes)
    offload = None
    if part.num_offload_blocks:
        offload = KVOffload(part.num_offload_blocks, config.block_size, enable_prefix_caching=caches_prefixes)
    scheduler = Scheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=part.max_model_len,
        block_manager=block_manager,
        eos_token_ids=model.eos_token_ids,
        forced_end_token_id=model.forced_end_token_id,
        enable_prefix_caching=caches_prefixes,
        offload=offload,
        max_concurrent_batches=executor.max_concurrent_batches,
        supports_async_scheduling=executor.supports_async_scheduling,
    )
    description = ModelDescription(
        name=name or config.model,
        max_model_len=part.max_model_len,
        vocab_size=model.vocab_size,
        created=int(time.time()),
        kv_blocks_total=part.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_cudagraph_capture_size=part.largest_graph,
        eos_token_ids=model.eos_token_ids,
        weights_generation=config.weights_generation,
        scores_prompts=model.answers is None,
        default_sampling_params=defaults,
        bad_token_sequences=() if model.answers is None else model.answers.bad_token_sequences,
    )
    _logger.info("engine for %s: %s", description.name, description.capacity)
    engine_class = Engine if model.answers is None else partial(EncoderDecoderEngine, answers=model.answers)
    return engine_class(description=description, scheduler=scheduler, executor=executor, seed=config.seed)


def _check_determinism(config: EngineConfig, dtype: torch.dtype) -> None:
    device = any_device()
    if device.type == "cpu":
        use_cpu_kernels()
    if config.deterministic and not rayinfer_kernels.is_batch_invariant(device, dtype):
        raise ConfigError(
            f"deterministic must not be true with {dtype} on a {device.type}: only the compiled CPU kernels keep "
            "results independent of the batch, in float32 and bfloat16 "
            f"({rayinfer_kernels.cpu_kernels_status().detail})"
        )


def _check_quality(config: EngineConfig, folder: Path) -> None:
    model = measured_model(config.model, folder)
    modes = [config.quantization, None if config.kv_cache_dtype == "auto" else f"{config.kv_cache_dtype}-kv"]
    for mode in filter(None, modes):
        check_quality(mode, is_inaccuracy_allowed=config.allow_inaccurate_quantization, model=model)
