"""Puts an engine together from its settings and a model's folder."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.engine.encoder_decoder_engine import EncoderDecoderEngine
from rayinfer.engine.engine import Engine
from rayinfer.engine.executor import Executor
from rayinfer.engine.group_executor import GroupExecutor
from rayinfer.engine.kv_offload import KVOffload
from rayinfer.engine.model_part import ModelPart, any_device, build_part, settled
from rayinfer.engine.process_executor import RankProcesses
from rayinfer.engine.rank_group import RankGroup, place_of
from rayinfer.engine.rendezvous import GROUP_TIMEOUT_S, RendezvousHost, open_rendezvous
from rayinfer.engine.scheduler import Scheduler
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.optimization.device_modes import check_device
from rayinfer.optimization.quality_gates import check_quality
from rayinfer.protocols import ModelDescription


def build_engine(
    config: EngineConfig,
    folder: Path,
    *,
    name: str | None = None,
    rendezvous: RendezvousHost | None = None,
    group_timeout_s: float = GROUP_TIMEOUT_S,
) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned.

    Where the settings ask for several ranks, this process is rank 0. The others are processes of its own, or with a
    `rendezvous` whoever comes there by `run_rank`, with the same settings. `group_timeout_s` is for the former: a rank
    that says nothing for so long and is stopped is lost; one that is not has GROUP_TIMEOUT_S, if that is longer.
    Raises EngineDead when a rank is lost or fails meanwhile.
    """
    model = read_model_config(folder)
    dtype = torch_dtype(config.dtype, model)
    check_device(config, any_device(), dtype)
    _check_quality(config)
    _check_determinism(config, dtype)
    if place_of(config, 0).world_size == 1:
        part = build_part(config, folder)
        return _engine_of(config, model, part, part.executor, name)
    with ExitStack() as on_failure:
        group, end_ranks = _gather_ranks(config, folder, rendezvous, group_timeout_s, on_failure)
        with group.explained_failures():
            part = build_part(config, folder, group)
        executor = GroupExecutor(group, part.executor, end_ranks, part.link)
        on_failure.pop_all()
        return _engine_of(config, model, part, executor, name)


def _gather_ranks(
    config: EngineConfig, folder: Path, host: RendezvousHost | None, timeout_s: float, on_failure: ExitStack
) -> tuple[RankGroup, Callable[[float], None]]:
    """Meet the other ranks; returns their group, and what ends those that were started here."""
    if host is not None:
        on_failure.callback(host.close)
        group = RankGroup.host(place_of(config, 0), host)
        on_failure.callback(group.close)
        return group, lambda grace_s: None
    host = open_rendezvous(timeout_s=timeout_s)
    on_failure.callback(host.close)
    processes = RankProcesses(config, folder, host.rendezvous)
    on_failure.callback(processes.end, 0.0)
    group = RankGroup.host(place_of(config, 0), host, processes)
    on_failure.callback(group.close)
    return group, processes.end


def _engine_of(
    config: EngineConfig, model: ModelConfig, part: ModelPart, executor: Executor, name: str | None
) -> Engine:
    caches_prefixes = settled(config, model).enable_prefix_caching
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
        num_plans_at_once=executor.num_plans_at_once,
        plans_ahead=executor.plans_ahead,
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
        eos_token_ids=model.eos_token_ids,
        weights_generation=config.weights_generation,
        scores_prompts=model.answers is None,
    )
    engine_class = Engine if model.answers is None else partial(EncoderDecoderEngine, answers=model.answers)
    return engine_class(description=description, scheduler=scheduler, executor=executor, seed=config.seed)


def _check_determinism(config: EngineConfig, dtype: torch.dtype) -> None:
    device = any_device()
    if device.type == "cpu":
        rayinfer_kernels.configure(cache_folder() / "kernels")
    if config.deterministic and not rayinfer_kernels.is_batch_invariant(device, dtype):
        raise ConfigError(
            f"deterministic must not be true with {dtype} on a {device.type}: only the compiled CPU kernels keep "
            "results independent of the batch, in float32 and bfloat16 "
            f"({rayinfer_kernels.cpu_kernels_status().detail})"
        )


def _check_quality(config: EngineConfig) -> None:
    modes = [config.quantization, None if config.kv_cache_dtype == "auto" else f"{config.kv_cache_dtype}-kv"]
    for mode in filter(None, modes):
        check_quality(mode, is_inaccuracy_allowed=config.allow_inaccurate_quantization)
