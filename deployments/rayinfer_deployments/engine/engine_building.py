"""Construction of engines from settings; importing this loads torch, so only an engine's own process does."""

import gc
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.distributed.rank_worker import run_rank
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.engine.ranks.rendezvous import Rendezvous, RendezvousHost
from rayinfer.engine.worker.cores import fill_machine, usable_cores
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictors.build_engine import build_predictor_engine, check_predictor_settings
from rayinfer_deployments.model_files.nodes_with_model import resolve_on_cluster


def build_async_engine(
    config: EngineConfig, num_processes_on_node: int, rendezvous: RendezvousHost | None = None
) -> AsyncEngine:
    """Find the model, load it and put the engine around it, with its share of this node's cores.

    An engine of several ranks waits at the rendezvous for the others.
    """
    num_ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    assert (num_ranks > 1) == (rendezvous is not None), "its ranks are actors, and no processes that it starts itself"
    config = _with_threads(config, num_processes_on_node)
    engine = _build(config, resolve_on_cluster(config.model), rendezvous)
    gc.collect()
    gc.freeze()  # all that is loaded by now stays: walking through it took pauses of a tenth of a second
    built = AsyncEngine(engine)
    built.stored_blocks = engine.stored_blocks if isinstance(engine, Engine) else None
    return built


def _build(config: EngineConfig, folder: Path, rendezvous: RendezvousHost | None) -> SteppedEngine:
    if predictor_kind(folder) is None:
        engine = build_engine(config, folder, rendezvous=rendezvous)
        engine.prepare_grammars()
        return engine
    check_predictor_settings(config)  # several ranks are refused before any is waited for
    return build_predictor_engine(config, folder)


def run_engine_rank(config: EngineConfig, num_processes_on_node: int, rendezvous: Rendezvous, rank: int) -> None:
    """Compute a further rank's part, until the first rank ends the group; raises when the group breaks."""
    config = _with_threads(config, num_processes_on_node)
    run_rank(config, resolve_on_cluster(config.model), rendezvous, rank)


def _with_threads(config: EngineConfig, num_processes_on_node: int) -> EngineConfig:
    num_threads = config.num_threads or max(1, len(usable_cores()) // num_processes_on_node)
    pin_threads = config.pin_threads
    if pin_threads is None:
        pin_threads = fill_machine(num_threads, num_processes_on_node)
    return config.model_copy(update={"num_threads": num_threads, "pin_threads": pin_threads})
