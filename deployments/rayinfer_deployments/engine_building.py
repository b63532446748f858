"""From settings to an engine ready to start; importing this loads torch, so only an engine's own process does."""

import gc

from rayinfer.config import EngineConfig
from rayinfer.engine.assembly import build_engine
from rayinfer.engine.async_engine import AsyncEngine
from rayinfer.engine.cores import fill_machine, usable_cores
from rayinfer.models.sources import resolve_model


def build_async_engine(config: EngineConfig, num_engines_on_node: int, epoch: int) -> AsyncEngine:
    """Find the model, load it and put the engine around it, with its share of this node's cores."""
    num_threads = config.num_threads or max(1, len(usable_cores()) // num_engines_on_node)
    pin_threads = config.pin_threads
    if pin_threads is None:
        pin_threads = fill_machine(num_threads, num_engines_on_node)
    config = config.model_copy(update={"num_threads": num_threads, "pin_threads": pin_threads})
    engine = build_engine(config, resolve_model(config.model, progress=False))
    gc.collect()
    gc.freeze()  # all that is loaded by now stays: walking through it took pauses of a tenth of a second
    return AsyncEngine(engine, epoch=epoch)
