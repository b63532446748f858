"""Work on a GPU that is recorded once and launched as one: all that the engine knows of CUDA graphs themselves."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Graph(Protocol):
    """Work on a GPU that was recorded, to be launched as often as wanted on what lies in the same memory then."""

    def capture(self, compute: Callable[[], None]) -> None:
        """Record what `compute` launches; it may run before that, too."""
        ...

    def replay(self) -> None:
        """Launch it."""
        ...


class CudaGraph:
    """A Graph whose memory comes from a pool of several; `stream` is where it runs before it is recorded."""

    def __init__(self, pool: Any, stream: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool  # what torch.cuda.graph_pool_handle returns
        self._stream = stream

    def capture(self, compute: Callable[[], None]) -> None:
        """Record what `compute` launches, once it has run: kernels are compiled and tuned when they first do."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            compute()
        torch.cuda.current_stream().wait_stream(self._stream)
        with torch.cuda.graph(self._graph, pool=self._pool):
            compute()

    def replay(self) -> None:
        """Launch it."""
        self._graph.replay()


class CudaGraphs:
    """Makes graphs that share one pool of memory, of which no two are launched at once.

    When all of them are gone the next ones get another pool: torch refuses one that was in use before. One stream
    serves them all, for products keep memory of each stream that they ever ran on.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._made: weakref.WeakSet[CudaGraph] = weakref.WeakSet()

    def __call__(self) -> CudaGraph:
        """Make one."""
        if not self._made:
            self._pool = torch.cuda.graph_pool_handle()
        graph = CudaGraph(self._pool, self._stream)
        self._made.add(graph)
        return graph
