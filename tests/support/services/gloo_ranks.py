"""Ranks as processes of their own, connected by gloo as engines' ranks are on a CPU."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore

from rayinfer.tensor_parallel import RankCoordinates, Shard, SingleRankGroup, TensorGroup, TorchGroup

TIMEOUT = timedelta(seconds=300)
Result = TypeVar("Result")


class GlooRank:
    """One process's view of all of them; all must make the same calls in the same order."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.world = ProcessGroupGloo(PrefixStore("all", store), rank, size, TIMEOUT)
        self.rank, self.size = rank, size
        self._store = store
        self._groups: dict[str, TensorGroup] = {}

    def shard(self, num_stages: int = 1) -> Shard:
        """Return this rank's shard where all ranks form so many stages, each of as many tensor ranks."""
        coordinates = RankCoordinates(self.rank, self.size // num_stages, num_stages)
        if coordinates.tensor_parallel_size == 1:
            return Shard(coordinates, SingleRankGroup())
        name = f"stage {coordinates.stage} of {num_stages}"
        if name not in self._groups:
            store = PrefixStore(name, self._store)
            group = ProcessGroupGloo(store, coordinates.tensor_rank, coordinates.tensor_parallel_size, TIMEOUT)
            self._groups[name] = TorchGroup(group)
        return Shard(coordinates, self._groups[name])


def run_processes(size: int, run: Callable[..., Result], *arguments: Any) -> list[Result]:
    """Run run(rank, *arguments) on `size` ranks at once, each of which has a GlooRank; returns what each returned."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    with ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as processes:
        ranks = [processes.submit(_run_one, rank, size, store.port, run, arguments) for rank in range(size)]
        return [rank.result(TIMEOUT.total_seconds()) for rank in ranks]


def _run_one(rank: int, size: int, port: int, run: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    with torch.inference_mode():
        return run(GlooRank(rank, size, store), *arguments)
