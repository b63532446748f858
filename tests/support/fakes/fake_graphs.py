"""Graphs without a GPU: what is recorded is kept as a function, and really runs again when it is replayed."""

import torch

from rayinfer import LLM
from rayinfer.engine.worker.graphs.decode_graphs import DecodeGraphs, Draw
from rayinfer.engine.worker.padding import Padding
from rayinfer_kernels import ops


class FakeGraph:
    """CUDA graph that counts its replays."""

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, compute):
        compute()
        self._compute = compute

    def replay(self):
        self.num_replays += 1
        self._compute()


class FakeGraphs:
    """Makes graphs and knows them all."""

    def __init__(self) -> None:
        self.made = []

    def __call__(self):
        self.made.append(FakeGraph())
        return self.made[-1]

    @property
    def num_replays(self):
        return sum(graph.num_replays for graph in self.made)


DRAW = Draw(ops.uniform, ops.sample_rows)


def record_fake_graphs(llm: LLM, *, draws: bool = False) -> FakeGraphs:
    """Have an LLM's decoding steps recorded; what fills them up is written to a block that is taken from its pool."""
    runner, graphs, description = llm.engine.executor.runner, FakeGraphs(), llm.description
    (spare,) = llm.engine.scheduler.blocks.allocate(1)
    runner.record(
        DecodeGraphs(
            num_rows=runner.num_rows,
            max_blocks=-(-description.max_model_len // description.block_size),
            device=torch.device("cpu"),
            new_graph=graphs,
            future_tokens=runner.future_tokens,
            padding=Padding.in_block(spare, description.block_size),
            draw=DRAW if draws else None,
        )
    )
    return graphs
