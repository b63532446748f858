"""From settings to an engine ready to start; importing this loads torch, so only an engine's own process does."""

import os

from rayinfer.config import EngineConfig
from rayinfer.engine.assembly import build_engine
from rayinfer.engine.async_engine import AsyncEngine
from rayinfer.models.sources import resolve_model


def build_async_engine(config: EngineConfig, num_engines_on_node: int, epoch: int) -> AsyncEngine:
    """Find the model, load it and put the engine around it, with its share of this node's cores."""
    if config.num_threads is None:
        num_cores = len(os.sched_getaffinity(0))
        config = config.model_copy(update={"num_threads": max(1, num_cores // num_engines_on_node)})
    return AsyncEngine(build_engine(config, resolve_model(config.model, progress=False)), epoch=epoch)
