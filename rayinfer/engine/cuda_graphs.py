"""Whole decoding steps as CUDA graphs: recorded once for each padded number of requests, then launched as one."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rayinfer.attention.batch import AttentionBatch
from rayinfer.decoding.sampling_table import RowSettings
from rayinfer.engine.step_inputs import LastTokens, StepInputs
from rayinfer.engine.step_plan import StepPlan
from rayinfer.engine.step_upload import StepUpload

LARGEST_SIZE = 256  # requests; steps with more keep a GPU busy without
_ALIGNMENT = 64  # bytes

Compute = Callable[[StepInputs], torch.Tensor]  # a step's logits


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


class Drawn(Protocol):
    """A token per row, int64, and whether none could be chosen, bool."""

    @property
    def token_ids(self) -> torch.Tensor:
        """[rows]."""
        ...

    @property
    def is_invalid(self) -> torch.Tensor:
        """[rows]."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """Operations that choose tokens without a look from the host, by settings that lie on the device."""

    uniform: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of seeds, positions and choices
    # logits, temperature, top_k, top_p, min_p, numbers of `uniform`, is_greedy
    sample_rows: Callable[..., Drawn]


@dataclass(frozen=True, slots=True)
class Padding:
    """What stands in the lines that fill a step up: by default what no kernel reads or writes anything for."""

    slot: int = -1
    context_length: int = 0
    block: int = 0

    @staticmethod
    def in_block(block: int, block_size: int) -> "Padding":
        """A token that is written into a block of nobody's, for kernels that must have one."""
        return Padding(slot=block * block_size, context_length=1, block=block)


class GraphOutputs(NamedTuple):
    """What a graph leaves in memory that all of them share: valid until the next is launched."""

    rows: torch.Tensor  # the step's
    logits: torch.Tensor
    token_ids: torch.Tensor
    is_invalid: torch.Tensor


def graph_sizes(num_rows: int) -> list[int]:
    """The numbers of requests that steps are padded to: 1, 2, 4, then multiples of 8 until all have room, or enough."""
    sizes = [1, 2, 4, *range(8, LARGEST_SIZE + 1, 8)]
    return [size for size, smaller in zip(sizes, [0, *sizes], strict=False) if smaller < num_rows]


def graph_memory_bytes(
    num_rows: int, vocab_size: int, hidden_size: int, intermediate_size: int, max_blocks: int
) -> int:
    """What all graphs together take, on the safe side: the largest one's tensors, which the others use as well."""
    largest = graph_sizes(num_rows)[-1]
    logits = largest * vocab_size * 12  # as computed, as kept, and once in float32
    states = largest * 4 * (16 * hidden_size + 4 * intermediate_size)
    each = 2 << 20  # what CUDA keeps of a graph itself
    return logits + states + largest * max_blocks * 4 + each * len(graph_sizes(num_rows)) + (64 << 20)


class DecodeGraphs:
    """Runs steps in which every request has one token and samples; `max_blocks` is the longest block table.

    A step is filled up to the next size. Its arrays go to the device in one copy, to where the graph of that size reads
    them: no address ever changes while graphs are there. `last_tokens` has a row more than there are requests, which is
    that of the lines that fill up. With `draw` the graphs choose tokens as well.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        max_blocks: int,
        device: torch.device,
        new_graph: Callable[[], Graph],
        last_tokens: LastTokens,
        padding: Padding,
        draw: Draw | None = None,
    ) -> None:
        self.sizes = graph_sizes(num_rows)
        self.draw = draw
        self._new_graph = new_graph
        self._device = device
        self._last_tokens = last_tokens
        self._upload = StepUpload(device)
        most = self.sizes[-1]
        tables = torch.full((most, max_blocks), padding.block, dtype=torch.int32, device=device)
        memory = torch.zeros(_num_bytes(most), dtype=torch.uint8, device=device)
        self._lines = {size: _Lines(size, memory, tables, padding, spare_row=num_rows) for size in self.sizes}
        self._graphs: dict[int, Graph] = {}
        self._outputs: GraphOutputs | None = None

    def fit(self, plan: StepPlan) -> bool:
        """Whether there is a graph for the step."""
        num_requests = plan.num_requests
        return bool(self._graphs) and num_requests == plan.num_tokens <= self.sizes[-1] and bool(plan.samples.all())

    def capture(self, compute: Compute) -> None:
        """Record a graph for each size, the largest first: its memory has room for those of all others."""
        for size in reversed(self.sizes):
            lines = self._lines[size]
            lines.empty()
            lines.send(self._upload)
            if self._outputs is None:
                self._outputs = self._new_outputs(compute(lines.inputs))
            graph = self._new_graph()
            graph.capture(self._step_of(lines, compute, self._outputs))
            self._graphs[size] = graph

    def drop(self) -> None:
        """Forget all graphs: what they read and write is about to move."""
        self._graphs.clear()
        self._outputs = None

    def run(self, plan: StepPlan, settings: RowSettings | None) -> GraphOutputs:
        """Compute a step that fits; its tokens mean something if `settings` [num_requests] say how they are drawn."""
        assert self._outputs is not None, "a step without graphs"
        size = next(size for size in self.sizes if size >= plan.num_requests)
        lines = self._lines[size]
        lines.fill(plan, settings)
        lines.send(self._upload)
        self._graphs[size].replay()
        count = plan.num_requests
        return GraphOutputs(lines.inputs.rows[:count], *(output[:count] for output in self._outputs[1:]))

    def _step_of(self, lines: "_Lines", compute: Compute, outputs: GraphOutputs) -> Callable[[], None]:
        def step() -> None:
            inputs, size = lines.inputs, lines.size
            logits = compute(inputs)
            outputs.logits[:size].copy_(logits)
            if self.draw is not None:
                drawn = self._drawn(self.draw, lines, logits)
                outputs.token_ids[:size].copy_(drawn.token_ids)
                outputs.is_invalid[:size].copy_(drawn.is_invalid)
                self._last_tokens.keep(inputs.rows, drawn.token_ids)

        return step

    def _drawn(self, draw: Draw, lines: "_Lines", logits: torch.Tensor) -> Drawn:
        on_device = lines.on_device
        numbers = draw.uniform(on_device["seed"], lines.inputs.batch.context_lengths.long(), on_device["choice"])
        truncation = (on_device[name] for name in ("temperature", "top_k", "top_p", "min_p"))
        return draw.sample_rows(logits, *truncation, numbers, on_device["is_greedy"])

    def _new_outputs(self, logits: torch.Tensor) -> GraphOutputs:
        most = self.sizes[-1]
        return GraphOutputs(
            self._lines[most].inputs.rows,
            torch.empty(most, logits.shape[1], dtype=logits.dtype, device=self._device),
            torch.zeros(most, dtype=torch.int64, device=self._device),
            torch.zeros(most, dtype=torch.bool, device=self._device),
        )


# What every line of a step has, in this order in memory: of the plan, then of the sampler.
_PLANNED = {
    "token_ids": np.int32,
    "positions": np.int64,
    "slots": np.int64,
    "context_lengths": np.int32,
    "rows": np.int64,
}
_DRAWN: dict[str, Any] = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float64, "min_p": np.float32}
_DRAWN |= {"seed": np.int64, "choice": np.int64, "is_greedy": np.bool_}
_FIELDS: dict[str, Any] = {**_PLANNED, "continues": np.bool_, "query_starts": np.int32, **_DRAWN}
_UNTOUCHED = {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "seed": 0, "choice": 0, "is_greedy": True}


def _starts(size: int) -> dict[str, int]:
    """Where each field begins, in bytes; the last is where all end."""
    starts, start = {}, 0
    for name, dtype in _FIELDS.items():
        starts[name] = start
        start += -(-(size + 1) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts | {"": start}


def _num_bytes(size: int) -> int:
    return _starts(size)[""]


class _Lines:
    """The inputs of the graph of one size: where they are filled in on the host, and where it reads them."""

    def __init__(
        self, size: int, memory: torch.Tensor, tables: torch.Tensor, padding: Padding, *, spare_row: int
    ) -> None:
        self.size = size
        self._padding = padding
        self._spare_row = spare_row
        self._num_bytes = _num_bytes(size)
        self._on_host = np.zeros(self._num_bytes, np.uint8)
        self._tables_on_host = np.full((size, 1), padding.block, np.int32)
        self._memory = memory[: self._num_bytes]
        self._tables = tables[:size]
        self._fields: dict[str, np.ndarray] = {}
        self.on_device: dict[str, torch.Tensor] = {}
        for name, start in list(_starts(size).items())[:-1]:
            count = size + 1 if name == "query_starts" else size
            end = start + count * np.dtype(_FIELDS[name]).itemsize
            self._fields[name] = field = self._on_host[start:end].view(_FIELDS[name])
            self.on_device[name] = self._memory[start:end].view(torch.from_numpy(field[:0]).dtype)
        self._fields["query_starts"][:] = np.arange(size + 1)
        self.empty()
        given = self.on_device
        batch = AttentionBatch(
            given["positions"],
            given["slots"],
            given["query_starts"],
            given["context_lengths"],
            self._tables,
            given["rows"],
        )
        self.inputs = StepInputs(given["token_ids"], batch, given["rows"], given["continues"], given["rows"], None)

    def empty(self) -> None:
        """A step of nobody."""
        self._fill_up(0, 1)

    def fill(self, plan: StepPlan, settings: RowSettings | None) -> None:
        """Lay a plan out, and what is asked of the sampler."""
        count, width = plan.block_tables.shape
        self._fill_up(count, width)
        self._tables_on_host[:count] = plan.block_tables
        for name in _PLANNED:
            self._fields[name][:count] = getattr(plan, name)
        self._fields["continues"][:count] = False if plan.continues is None else plan.continues
        for name in _DRAWN:
            self._fields[name][:count] = _UNTOUCHED[name] if settings is None else settings[name]

    def _fill_up(self, count: int, width: int) -> None:
        """The lines behind so many, and tables of so many blocks."""
        padding, fields = self._padding, self._fields
        for name in ("token_ids", "positions", "continues"):
            fields[name][count:] = 0
        fields["slots"][count:] = padding.slot
        fields["context_lengths"][count:] = padding.context_length
        fields["rows"][count:] = self._spare_row
        for name, value in _UNTOUCHED.items():
            fields[name][count:] = value
        self._tables_on_host = np.full((self.size, width), padding.block, np.int32)

    def send(self, upload: StepUpload) -> None:
        """Bring them to where the graph reads them; what is behind the longest table is not looked at."""
        lines, tables = upload.send([self._on_host, self._tables_on_host])
        self._memory.copy_(lines)
        self._tables[:, : tables.shape[1]].copy_(tables)
