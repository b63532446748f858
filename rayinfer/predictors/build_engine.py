"""Builds a predictor engine from its settings and a model's folder."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.images.decoding import ImageDecoder
from rayinfer.predictions import ImageLimits
from rayinfer.predictors.batching import BatchingSettings, DynamicBatcher
from rayinfer.predictors.build_runner import build_runner
from rayinfer.predictors.cost_model import CostModel
from rayinfer.predictors.predictor_engine import PredictorEngine
from rayinfer.predictors.predictor_request import ImageSource, PredictorRequest
from rayinfer.predictors.probes import probe_item
from rayinfer.predictors.runner import Runner, RunnerItem
from rayinfer.predictors.runners.image_processing import read_image_processing
from rayinfer.predictors.weights_digest import weights_digest
from rayinfer.protocols import ModelDescription

logger = logging.getLogger(__name__)

CPU_STEP_TOKENS, GPU_STEP_TOKENS = 2048, 16_384  # beyond that, activations leave the cache, or nothing is gained
MAX_ITEMS = 256  # of a step, unless `max_num_seqs` is given
PROBE_FACTOR = 8  # between the sizes of two probes
PROBE_RUNS, PROBE_S = 5, 0.5  # of one size: the fastest counts, as others take the cores while a service starts
GENERATION_SETTINGS = (
    *("num_kv_blocks", "kv_cache_memory_bytes", "memory_fraction", "kv_offload_bytes"),
    *("kv_store_gib", "kv_store_disk_gib", "kv_store_folder"),
    *("async_scheduling", "max_cudagraph_capture_size", "draft_model"),
)


def build_predictor_engine(config: EngineConfig, folder: Path | None) -> PredictorEngine:
    """Load the model and measure its steps; `folder` is what `resolve_model` returned, None of a registered one.

    Raises ModelLoadError, and ConfigError for settings that a predictor does not have.
    """
    check_predictor_settings(config)
    runner = build_runner(config, folder)
    images = None
    if folder is not None and runner.description.image_size:
        limits = ImageLimits(
            max_bytes=config.max_image_bytes, max_pixels=config.max_image_pixels, max_side=config.max_image_side
        )
        images = ImageDecoder(read_image_processing(folder).shape, limits)
    digest = weights_digest(config, folder)
    return assemble_engine(config, runner, partial(_load_again, config, folder, digest), images, digest=digest)


def _load_again(config: EngineConfig, folder: Path | None, digest: str) -> Runner:
    """Load the model that an engine gave up while it slept; raises ModelLoadError for other weights.

    Results are cached by the digest that routers know: an engine that starts anew reports another one.
    """
    runner = build_runner(config, folder)
    if weights_digest(config, folder) != digest:
        runner.close()
        raise ModelLoadError(f"the files of {config.model!r} have changed: another engine has to load them")
    return runner


def check_predictor_settings(config: EngineConfig) -> None:
    """Raise ConfigError for settings that only models that generate have."""
    given = [name for name in GENERATION_SETTINGS if getattr(config, name) is not None]
    if config.kv_cache_dtype != "auto":
        given.append("kv_cache_dtype")
    if config.engine == "static":
        given.append("engine")
    if given:
        raise ConfigError(f"{', '.join(given)}: {config.model!r} does not generate, and has no KV cache")
    if config.num_ranks > 1:
        raise ConfigError(f"a predictor runs on one rank, got {config.num_ranks}: {config.model!r} does not generate")


def assemble_engine(
    config: EngineConfig,
    runner: Runner,
    load_runner: Callable[[], Runner],
    images: ImageSource | None = None,
    *,
    digest: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> PredictorEngine:
    """Put the engine around a runner, after measuring its steps."""
    default = CPU_STEP_TOKENS if any_device().type == "cpu" else GPU_STEP_TOKENS
    max_cost = config.max_num_batched_tokens or default
    costs = CostModel(target_step_s=config.target_step_ms / 1e3, max_cost=max_cost)
    measure_steps(costs, runner, max_cost, config.target_step_ms / 1e3, clock)
    max_items = config.max_num_seqs or MAX_ITEMS
    settings = BatchingSettings(max_wait_s=config.max_wait_ms / 1e3, max_items=max_items)
    batcher: DynamicBatcher[PredictorRequest] = DynamicBatcher(costs, settings, clock)
    predictor = runner.description
    description = ModelDescription(
        name=config.model,
        max_model_len=max(1, runner.max_input_tokens),
        vocab_size=runner.vocab_size,
        created=int(time.time()),
        max_num_seqs=max_items,
        max_num_batched_tokens=costs.budget,
        weights_version=config.weights_version,
        scores_prompts=False,
        predictor=replace(predictor, digest=digest),
    )
    logger.info(
        "predictor for %s: %s, max_model_len %d, steps of up to %d tokens: %.1f ms + %.1f us a token",
        *(description.name, ", ".join(predictor.tasks), description.max_model_len, costs.budget),
        *(costs.base_s * 1e3, costs.per_unit_s * 1e6),
    )
    return PredictorEngine(
        description=description, load_runner=load_runner, runner=runner, batcher=batcher, images=images, clock=clock
    )


def measure_steps(
    costs: CostModel, runner: Runner, max_cost: int, target_step_s: float, clock: Callable[[], float]
) -> None:
    """Measure steps of growing size, until one is at the largest size or takes longer than a step should."""
    size, seconds = 1, 0.0
    while seconds < target_step_s or size <= PROBE_FACTOR:  # two at least
        probe = probe_item(runner, size)
        if probe is None:
            return
        cost = len(probe.token_ids) or runner.description.image_cost
        batch = [probe] * max(1, size // cost)
        if size == 1:
            runner.run(batch)  # whatever is allocated or compiled at first is no part of a step
        seconds = _fastest_run(runner, batch, clock)
        costs.record_probe(cost * len(batch), seconds)
        if size >= max_cost:
            return
        size = min(size * PROBE_FACTOR, max_cost)


def _fastest_run(runner: Runner, batch: list[RunnerItem], clock: Callable[[], float]) -> float:
    began, fastest = clock(), math.inf
    for _ in range(PROBE_RUNS):
        started = clock()
        runner.run(batch)
        ended = clock()
        fastest = min(fastest, ended - started)
        if ended - began > PROBE_S:
            break
    return fastest
