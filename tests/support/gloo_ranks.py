"""Ranks as processes of their own that meet over gloo, as engines' ranks do on a CPU."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroupGloo, TCPStore

from rayinfer.tensor_parallel import TorchGroup

TIMEOUT = timedelta(seconds=300)
Result = TypeVar("Result")


def run_processes(size: int, run: Callable[..., Result], *arguments: Any) -> list[Result]:
    """Run run(group, *arguments) on `size` ranks at once, a thread each; returns what each of them returned."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    with ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as processes:
        ranks = [processes.submit(_run_one, rank, size, store.port, run, arguments) for rank in range(size)]
        return [rank.result(TIMEOUT.total_seconds()) for rank in ranks]


def _run_one(rank: int, size: int, port: int, run: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    group = TorchGroup(ProcessGroupGloo(store, rank, size, TIMEOUT))
    with torch.inference_mode():
        return run(group, *arguments)
