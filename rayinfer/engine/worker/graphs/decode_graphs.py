"""Decode graphs: whole decode steps, captured for each padded batch size and launched as one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

import rayinfer_kernels
from rayinfer.decoding.sampling_table import RowSettings
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.graphs.cuda_graphs import Graph, unowned
from rayinfer.engine.worker.graphs.graph_input_buffers import GraphInputBuffers, allocate_graph_inputs
from rayinfer.engine.worker.padding import Padding
from rayinfer.engine.worker.step_inputs import FutureTokens, StepInputs
from rayinfer.engine.worker.step_results import TokenMemory
from rayinfer.engine.worker.step_upload import StepUpload
from rayinfer.models.model_config import ModelConfig

Compute = Callable[[StepInputs], torch.Tensor]  # a step's logits


class Drawn(Protocol):
    """A token per row, and whether none could be chosen."""

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
    """Operations that sample tokens by settings on the device, without the host."""

    uniform: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of seeds, positions and choices
    # logits, temperature, top_k, top_p, min_p, numbers of `uniform`, is_greedy
    sample_rows: Callable[..., Drawn]


class GraphOutputs(NamedTuple):
    """Outputs of a graph: valid until the next graph is launched, since graphs share memory."""

    rows: torch.Tensor  # the step's
    logits: torch.Tensor
    tokens: TokenMemory  # has more rows behind those of the step


def graph_sizes(num_requests: int) -> list[int]:
    """Batch sizes that steps of up to `num_requests` are padded to: 1, 2, 4, multiples of 8 to 256, then of 16."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, num_requests + 16, 16)]
    return [size for size, smaller in zip(sizes, [0, *sizes], strict=False) if smaller < num_requests]


class DecodeGraphs:
    """Runs steps in which every request has one token and samples; `max_blocks` is the longest block table.

    There are graphs for up to `max_capture_size` requests, by default for as many as there are rows.

    A step is padded to the next size, and copied at once to the static buffers of that size's graph: no address changes
    while graphs exist. `future_tokens` has one row more than there are requests, for padding. With `draw` the graphs
    sample tokens as well.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        max_blocks: int,
        device: torch.device,
        new_graph: Callable[[], Graph],
        future_tokens: FutureTokens,
        padding: Padding,
        draw: Draw | None = None,
        max_capture_size: int | None = None,
        has_windows: bool = False,
    ) -> None:
        self.sizes = graph_sizes(num_rows if max_capture_size is None else min(num_rows, max_capture_size))
        self.draw = draw
        self._new_graph = new_graph
        self._device = device
        self._future_tokens = future_tokens
        self._upload = StepUpload(device)
        self._inputs = allocate_graph_inputs(
            self.sizes,
            max_blocks=max_blocks,
            padding=padding,
            padding_row=num_rows,
            device=device,
            has_windows=has_windows,
        )
        self._graphs: dict[int, Graph] = {}
        self._logits: dict[int, torch.Tensor] = {}  # by size, where its graph leaves them
        self._tokens = TokenMemory(self.sizes[-1], device)

    def fits(self, plan: StepPlan) -> bool:
        """Return whether there is a graph for the step."""
        num_requests = plan.num_requests
        return bool(self._graphs) and num_requests == plan.num_tokens <= self.sizes[-1] and bool(plan.samples.all())

    def capture(self, compute: Compute) -> None:
        """Capture a graph for each size, the largest first: the others fit into its memory."""
        for size in reversed(self.sizes):
            buffers = self._inputs[size]
            buffers.clear()
            buffers.send(self._upload)
            graph = self._new_graph()
            graph.capture(self._step_of(buffers, compute))
            self._graphs[size] = graph

    def drop(self) -> None:
        """Drop all graphs: what they read and write is about to move."""
        self._graphs.clear()
        self._logits.clear()

    def run(self, plan: StepPlan, settings: RowSettings | None) -> GraphOutputs:
        """Compute a step that fits; its tokens are valid if `settings` [num_requests] are given."""
        size = next(size for size in self.sizes if size >= plan.num_requests)
        buffers = self._inputs[size]
        buffers.fill(plan, settings)
        buffers.send(self._upload)
        self._graphs[size].replay()
        count = plan.num_requests
        return GraphOutputs(buffers.inputs.rows[:count], self._logits[size][:count], self._tokens)

    def _step_of(self, buffers: GraphInputBuffers, compute: Compute) -> Callable[[], None]:
        def step() -> None:
            inputs, size = buffers.inputs, buffers.size
            logits = compute(inputs).contiguous()
            self._logits[size] = unowned(logits)
            if self.draw is not None:
                drawn = self._drawn(self.draw, buffers, logits)
                self._tokens.token_ids[:size].copy_(drawn.token_ids)
                self._tokens.is_invalid[:size].copy_(drawn.is_invalid)
                self._future_tokens.keep(inputs.rows, drawn.token_ids)

        return step

    def _drawn(self, draw: Draw, buffers: GraphInputBuffers, logits: torch.Tensor) -> Drawn:
        on_device = buffers.on_device
        numbers = draw.uniform(on_device["seed"], on_device["draw_position"], on_device["choice"])
        truncation = (on_device[name] for name in ("temperature", "top_k", "top_p", "min_p"))
        return draw.sample_rows(logits, *truncation, numbers, on_device["is_greedy"])


# What torch allocates to cuBLAS for each stream of each thread, from compute capability 9.0 on (older: a
# quarter). There are three: that which records, and that of steps in the thread that builds the engine and in its own.
_WORKSPACE_BYTES, _NUM_WORKSPACES = 32 << 20, 3
_LAUNCHES_PER_LAYER, _LAUNCH_BYTES = 16, 8 << 10  # what CUDA keeps of a graph itself: this much for each of its kernels
_SLACK_BYTES = 64 << 20  # fragmentation of torch's allocator


def graph_memory_bytes(model: ModelConfig, max_capture_size: int, max_blocks: int, block_size: int) -> int:
    """Estimate all graphs together: the largest one's tensors, which the others share, and what each adds.

    No block table is longer than `max_blocks`.
    """
    sizes = graph_sizes(max_capture_size)
    largest = max(step_memory_bytes(model, size, max_blocks * block_size) for size in sizes)
    tables = sizes[-1] * max_blocks * 4 * 3  # where the graphs read them, and twice on their way
    each = model.num_layers * _LAUNCHES_PER_LAYER * _LAUNCH_BYTES
    return largest + tables + len(sizes) * each + _NUM_WORKSPACES * _WORKSPACE_BYTES + _SLACK_BYTES


def step_memory_bytes(model: ModelConfig, num_requests: int, max_context: int) -> int:
    """Bound what a step of one token each allocates; contexts have up to `max_context` tokens."""
    logits = model.vocab_size * 12  # as computed, as kept, and once in float32
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    states = 4 * (8 * model.hidden_size + 4 * heads + 4 * model.intermediate_size)
    return num_requests * (logits + states) + rayinfer_kernels.gpu_workspace_bytes(
        num_requests=num_requests,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_context=max_context,
        vocab_size=model.vocab_size,
    )
