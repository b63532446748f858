"""Graphs without a GPU: what is recorded is kept as a function, and really runs again when it is replayed."""

import torch

from rayinfer import LLM
from rayinfer.decoding.inverse_cdf import first_exceeding, padded_to_blocks, to_weights_
from rayinfer.decoding.philox import uniform
from rayinfer.decoding.truncation import keep_top_k_top_p_
from rayinfer.engine.cuda_graphs import DecodeGraphs, Draw, Drawn, Padding
from rayinfer_kernels import ops


class FakeGraph:
    """Counts its replays."""

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


class Chosen(Drawn):
    """Tokens."""

    def __init__(self, token_ids, is_invalid):
        self._token_ids, self._is_invalid = token_ids, is_invalid

    @property
    def token_ids(self):
        return self._token_ids

    @property
    def is_invalid(self):
        return self._is_invalid


def sample_rows(logits, temperature, top_k, top_p, min_p, numbers, is_greedy):
    """What the sampler does, for settings that lie beside the logits."""
    best = ops.row_max(logits)
    scaled = padded_to_blocks(logits.float().clone()).div_(temperature.unsqueeze(1))
    keep_top_k_top_p_(scaled, top_k.long(), top_p)
    weights = to_weights_(scaled, (best.values.float() / temperature).unsqueeze(1))
    weights.masked_fill_(weights < min_p.unsqueeze(1), 0.0)
    token_ids = torch.where(is_greedy, best.indices, first_exceeding(weights, numbers))
    is_invalid = ~torch.isfinite(best.values)
    return Chosen(token_ids.masked_fill(is_invalid, 0), is_invalid)


DRAW = Draw(uniform, sample_rows)


def record_fake_graphs(llm: LLM, *, draws: bool = False) -> FakeGraphs:
    """Have an LLM's decoding steps recorded; what fills them up is written to a block that is taken from its pool."""
    engine = llm._engine
    runner = engine.executor._runner
    (spare,) = engine._scheduler._blocks.allocate(1)
    graphs, description = FakeGraphs(), engine.description
    runner.record(
        DecodeGraphs(
            num_rows=runner.num_rows,
            max_blocks=-(-description.max_model_len // description.block_size),
            device=torch.device("cpu"),
            new_graph=graphs,
            last_tokens=runner.last_tokens,
            padding=Padding.in_block(spare, description.block_size),
            draw=DRAW if draws else None,
        )
    )
    return graphs
