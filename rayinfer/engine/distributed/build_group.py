"""Builds rank 0's worker and the executor of its group, once the other ranks have joined."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.distributed.group_executor import GroupExecutor
from rayinfer.engine.distributed.process_executor import RankProcesses
from rayinfer.engine.ranks.rank_coordinates import coordinates_of
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rendezvous import RendezvousHost
from rayinfer.engine.worker.worker import Worker, build_worker
from rayinfer.liveness import DEFAULT_LIMITS


def build_group(
    config: EngineConfig, folder: Path, host: RendezvousHost | None, timeout_s: float | None
) -> tuple[Worker, GroupExecutor]:
    """Gather the ranks, started here without a `host`, and load rank 0's part; ends all of them if anything fails."""
    with ExitStack() as on_failure:
        if host is None:
            group, end_ranks = _start_ranks(config, folder, timeout_s or DEFAULT_LIMITS.group_timeout_s, on_failure)
        else:
            on_failure.callback(host.close)
            group, end_ranks = RankGroup.host(coordinates_of(config, 0), host), lambda grace_s: None
            on_failure.callback(group.close)
        with group.explained_failures():
            worker = build_worker(config, folder, group)
        executor = GroupExecutor(group, worker.executor, end_ranks, worker.link)
        on_failure.pop_all()
        return worker, executor


def _start_ranks(
    config: EngineConfig, folder: Path, timeout_s: float, on_failure: ExitStack
) -> tuple[RankGroup, Callable[[float], None]]:
    host = RendezvousHost(timeout_s=timeout_s)
    on_failure.callback(host.close)
    processes = RankProcesses(config, folder, host.rendezvous)
    on_failure.callback(processes.end, 0.0)
    group = RankGroup.host(coordinates_of(config, 0), host, processes)
    on_failure.callback(group.close)
    return group, processes.end
