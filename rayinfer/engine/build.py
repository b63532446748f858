"""Builds an engine of one or more ranks from its settings and a model's folder."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.build_single_rank import build_one_rank_engine, check_settings, engine_of
from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.distributed.process_executor import RankProcesses
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.ranks.rank_coordinates import coordinates_of
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import RendezvousHost, open_rendezvous
from rayinfer.engine.worker.worker import build_part
from rayinfer.liveness import DEFAULT_LIMITS
from rayinfer.models.generation_config import default_sampling_params


def build_engine(
    config: EngineConfig,
    folder: Path,
    *,
    name: str | None = None,
    rendezvous: RendezvousHost | None = None,
    group_timeout_s: float = DEFAULT_LIMITS.group_timeout_s,
) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned.

    Where the settings ask for several ranks, this process is rank 0. The others are processes of its own, or with a
    `rendezvous` those that join by `run_rank`, with the same settings. `group_timeout_s` is for the former: a rank
    that sends nothing for so long and is stopped is lost; one that is not has the default, if that is longer.
    Raises EngineDead when a rank is lost or fails meanwhile.
    """
    if coordinates_of(config, 0).world_size == 1:
        return build_one_rank_engine(config, folder, name=name)
    model = check_settings(config, folder)
    defaults = default_sampling_params(config, folder)
    with ExitStack() as on_failure:
        group, end_ranks = _gather_ranks(config, folder, rendezvous, group_timeout_s, on_failure)
        with group.explained_failures():
            part = build_part(config, folder, group)
        executor = GroupExecutor(group, part.executor, end_ranks, part.link)
        on_failure.pop_all()
        return engine_of(model, part, executor, name, defaults)


def _gather_ranks(
    config: EngineConfig, folder: Path, host: RendezvousHost | None, timeout_s: float, on_failure: ExitStack
) -> tuple[RankGroup, Callable[[float], None]]:
    """Gather the other ranks; returns their group and the handle that ends those started here."""
    if host is not None:
        on_failure.callback(host.close)
        group = RankGroup.host(coordinates_of(config, 0), host)
        on_failure.callback(group.close)
        return group, lambda grace_s: None
    host = open_rendezvous(timeout_s=timeout_s)
    on_failure.callback(host.close)
    processes = RankProcesses(config, folder, host.rendezvous)
    on_failure.callback(processes.end, 0.0)
    group = RankGroup.host(coordinates_of(config, 0), host, processes)
    on_failure.callback(group.close)
    return group, processes.end
