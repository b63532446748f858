"""Kernel timing with cold caches and without host overhead."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

COLD_BYTES = 512 << 20  # so much is read before anything is read again, more than any processor caches


def seconds_per_call(calls: Sequence[Callable[[], object]], device: torch.device, num_repeats: int) -> float:
    """Return the median over repeats of all calls one after the other; on a GPU in one graph, so that nothing waits."""
    if device.type != "cuda":
        return statistics.median(_host_seconds(calls) for _ in range(num_repeats)) / len(calls)
    for call in calls:  # compiles what is not yet
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    seconds = []
    for _ in range(num_repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(float(begin.elapsed_time(end)) / 1000)
    return statistics.median(seconds) / len(calls)


def _host_seconds(calls: Sequence[Callable[[], object]]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin
