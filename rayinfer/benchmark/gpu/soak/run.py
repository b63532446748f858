"""A soak test from its beginning to its report."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.benchmark.gpu.engine_runs import open_engine
from rayinfer.benchmark.gpu.model_shapes import SHAPES, tiny_shape, write_shape
from rayinfer.benchmark.gpu.soak.memory import WORKSPACE_BYTES, read_memory
from rayinfer.benchmark.gpu.soak.random_load import RandomLoad, SoakReport
from rayinfer.benchmark.gpu.timing import describe_card
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakScale:
    """Sizes of the model and its engine; the pool is so small that requests are preempted."""

    is_tiny: bool
    settings: Mapping[str, Any]


FULL = SoakScale(
    is_tiny=False,
    settings=MappingProxyType(
        {
            "max_model_len": 2048,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            "num_kv_blocks": 1000,
            "kv_offload_bytes": 1 << 30,
            "allow_inaccurate_quantization": True,
        }
    ),
)
TINY = SoakScale(
    is_tiny=True,
    settings=MappingProxyType(
        {
            "max_model_len": 128,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "num_kv_blocks": 16,
            "kv_offload_bytes": 1 << 18,
            "num_threads": 1,
            "allow_inaccurate_quantization": True,
        }
    ),
)


def run_soak(
    folder: Path,
    log: Callable[[str], None],
    *,
    model: str = "Qwen3-0.6B",
    seconds: float = 600.0,
    scale: SoakScale = FULL,
    seed: int = 0,
    interrupt_every_s: float = 15.0,
    settings: Mapping[str, Any] = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
) -> SoakReport:
    """Load an engine of a model's shape for so many seconds; raises ConfigError for a shape that is not known.

    `folder` is for the model's settings. An exception of the engine ends the load and is a problem in the report.
    """
    if model not in SHAPES:
        raise ConfigError(f"there is no shape {model}: choose from {', '.join(SHAPES)}")
    write_shape(tiny_shape(model) if scale.is_tiny else SHAPES[model], folder)
    used = {**scale.settings, **settings}
    started_s, before = time.monotonic(), read_memory(0.0)
    with open_engine(folder, **used) as engine:
        load = RandomLoad(engine, log, seed=seed, interrupt_every_s=interrupt_every_s, clock=clock)
        ledger, readings, interruptions = load.ledger, load.readings, load.interruptions
        try:
            load.run(seconds)
        except Exception as error:  # the report logs so, beside all that was seen before
            log(traceback.format_exc())
            ledger.report(f"{type(error).__name__}: {error}")
        stats = engine.stats
    del engine, load  # what they hold on the device goes with them
    after = read_memory(time.monotonic() - started_s)
    if (left := after.allocated_bytes - before.allocated_bytes) > WORKSPACE_BYTES:
        ledger.report(f"{left >> 20} MiB are still allocated on the device after the engine's end")
    return SoakReport(
        card=describe_card(any_device()),
        model=model,
        settings=used,
        seed=seed,
        seconds=round(time.monotonic() - started_s, 1),
        requests=ledger.num_submitted,
        refused=ledger.num_refused,
        finished=dict(ledger.finished),
        prompt_tokens=stats.prompt_tokens_total,
        cached_prompt_tokens=stats.cached_prompt_tokens_total,
        output_tokens=ledger.num_output_tokens,
        steps=stats.num_steps_total,
        preemptions=stats.num_preemptions_total,
        interruptions=dict(interruptions),
        memory=readings,
        memory_before=before,
        memory_after=after,
        problems=ledger.problems,
    )
