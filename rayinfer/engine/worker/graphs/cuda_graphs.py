"""GPU work that is captured once and launched as one: the engine's wrapper of CUDA graphs."""

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
    """A Graph whose memory comes from a pool of several; `stream` is where it is recorded, and runs before that.

    Products keep memory for each stream that they run on, and a graph of theirs writes there. Having run on the stream,
    they have it before the recording, and not from its pool.
    """

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
        # Other threads may take memory meanwhile, for another engine say: this one does not.
        with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            compute()

    def replay(self) -> None:
        """Launch it."""
        self._graph.replay()


class CudaGraphs:
    """Makes graphs that share one pool of memory, of which no two are launched at once.

    When all of them are gone the next ones get another pool: torch refuses one that was in use before. One stream
    serves them alone: when a graph goes, torch takes the memory that products have for its stream away
    from all graphs that were recorded there (pytorch#193402), so these have to go together.
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


class _Address:
    """The address of a tensor's memory, as other libraries hand it to torch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        kind = f"<i{tensor.element_size()}"
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": kind,
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory on a GPU, which may be given to others all the same; on a CPU the tensor itself.

    What a graph computes stays where it was until another graph of the same pool is launched. To keep the tensor would
    keep its memory from the graphs recorded later.
    """
    if tensor.device.type != "cuda":
        return tensor
    assert tensor.is_contiguous(), "a copy of it would be gone at once"
    return torch.as_tensor(_Address(tensor), device=tensor.device).view(tensor.dtype)
