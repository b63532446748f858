"""Ranks as processes of their own that meet over gloo, as engines' ranks do on a CPU."""

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
    """One process's view of all of them; what it asks for, all must ask for in the same order."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.everybody = ProcessGroupGloo(PrefixStore("all", store), rank, size, TIMEOUT)
        self.rank, self.size = rank, size
        self._store = store
        self._groups: dict[str, TensorGroup] = {}

    def share(self, num_stages: int = 1) -> Shard:
        """Return what this rank holds where all of them are so many stages, each of as many tensor ranks."""
        place = RankCoordinates(self.rank, self.size // num_stages, num_stages)
        if place.tensor_parallel_size == 1:
            return Shard(place, SingleRankGroup())
        name = f"stage {place.stage} of {num_stages}"
        if name not in self._groups:
            store = PrefixStore(name, self._store)
            group = ProcessGroupGloo(store, place.tensor_rank, place.tensor_parallel_size, TIMEOUT)
            self._groups[name] = TorchGroup(group)
        return Shard(place, self._groups[name])


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
