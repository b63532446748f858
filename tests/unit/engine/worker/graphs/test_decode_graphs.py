"""Decode graphs: choice by batch size, padding, and static input buffers."""

import numpy as np
import pytest
import torch
from msgspec import structs

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.step_plan import NewRequestData
from rayinfer.engine.worker.graphs.decode_graphs import DecodeGraphs, graph_sizes
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.padding import Padding
from rayinfer.engine.worker.step_inputs import FutureTokens
from rayinfer.engine.worker.step_results import TokenMemory
from rayinfer.sampling_params import SamplingParams
from support.fakes.fake_graphs import DRAW, FakeGraphs
from support.fakes.step_plans import make_plan

CPU = torch.device("cpu")
VOCAB, NUM_ROWS, MAX_BLOCKS, BLOCK_SIZE = 13, 11, 6, 4


@pytest.mark.parametrize(
    ("num_rows", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (5, [1, 2, 4, 8]), (8, [1, 2, 4, 8]), (17, [1, 2, 4, 8, 16, 24])],
)
def test_sizes_leave_room_for_all_rows_and_little_more(num_rows, sizes):
    assert graph_sizes(num_rows) == sizes


def test_sizes_beyond_256_are_further_apart():
    assert graph_sizes(256)[-3:] == [240, 248, 256]
    assert graph_sizes(257)[-3:] == [248, 256, 272]
    assert graph_sizes(512)[-3:] == [480, 496, 512]


class Recorded:
    """Graphs of a model whose logits favor the token after a step's own; it notes what it has read."""

    def __init__(self, draw=None):
        self.made = FakeGraphs()
        self.last = FutureTokens(NUM_ROWS + 1, CPU)
        self.seen = []
        self.broken_token = -1  # what follows it is no number
        self.graphs = DecodeGraphs(
            num_rows=NUM_ROWS,
            max_blocks=MAX_BLOCKS,
            device=CPU,
            new_graph=self.made,
            future_tokens=self.last,
            padding=Padding.in_block(9, BLOCK_SIZE),
            draw=draw,
        )
        self.graphs.capture(self.compute)
        self.seen.clear()

    def compute(self, inputs):
        self.seen.append(inputs)
        token_ids = self.last.resolve(inputs)
        logits = torch.nn.functional.one_hot((token_ids.long() + 1) % VOCAB, VOCAB).float()
        return logits.where(token_ids[:, None] != self.broken_token, torch.nan)


def decoding(rows, token_ids=None, uses_last_sampled=None, width=2):
    chunks = {row: (position, 1) for position, row in enumerate(rows, start=3)}
    return make_plan(chunks, token_ids=token_ids, first_slot=20, num_blocks=width, uses_last_sampled=uses_last_sampled)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (11, 16)])
def test_a_step_runs_in_the_smallest_graph_that_has_room_for_it(count, size):
    recorded = Recorded()
    outputs = recorded.graphs.run(decoding(range(count)), None)
    assert len(recorded.seen) == recorded.made.num_replays == 1
    assert len(recorded.seen[0].rows) == size
    assert outputs.logits.argmax(dim=1).tolist() == list(range(2, count + 2))
    assert outputs.rows.tolist() == list(range(count))


def test_lines_that_fill_up_read_and_write_a_block_and_a_row_of_nobodys():
    recorded = Recorded()
    recorded.graphs.run(decoding(range(11)), None)
    recorded.graphs.run(decoding([4, 2, 7, 0, 1], width=3), None)
    batch = recorded.seen[-1].batch
    assert batch.rows.tolist() == [4, 2, 7, 0, 1, NUM_ROWS, NUM_ROWS, NUM_ROWS]
    assert batch.slot_mapping.tolist() == [20, 21, 22, 23, 24, 36, 36, 36]
    assert batch.seq_lens.tolist() == [4, 5, 6, 7, 8, 1, 1, 1]
    assert batch.block_tables[:5, :3].tolist() == np.arange(15).reshape(5, 3).tolist()
    assert (batch.block_tables[5:, :3] == 9).all()
    assert batch.cu_seqlens_q.tolist() == list(range(9))


def test_on_a_gpu_lines_that_fill_up_have_no_slot_and_no_context():
    assert Padding() == Padding(slot=-1, context_length=0, block=0)


def test_no_address_changes_from_step_to_step():
    recorded = Recorded()
    for count in (8, 5, 7, 6):
        recorded.graphs.run(decoding(range(count)), None)
    first, *others = recorded.seen
    for inputs in others:
        assert inputs.token_ids.data_ptr() == first.token_ids.data_ptr()
        for name in ("positions", "slot_mapping", "cu_seqlens_q", "seq_lens", "block_tables", "rows"):
            assert getattr(inputs.batch, name).data_ptr() == getattr(first.batch, name).data_ptr(), name


def test_graphs_are_recorded_from_the_largest_to_the_smallest():
    recorded = Recorded()
    recorded.graphs.drop()
    assert not recorded.graphs.fits(decoding([0]))
    recorded.seen.clear()
    recorded.graphs.capture(recorded.compute)
    assert [len(inputs.rows) for inputs in recorded.seen] == [16, 8, 4, 2, 1]
    assert recorded.graphs.fits(decoding([0]))


def test_a_row_goes_on_from_the_token_that_a_graph_drew_for_it():
    recorded = Recorded(DRAW)
    sampler = Sampler(NUM_ROWS, VOCAB)
    for row in range(3):
        enter(sampler, row, SamplingParams(temperature=0.0))
    plan = decoding([2, 0, 1], [5, 6, 7])
    settings = sampler.plain_settings(plan.rows, plan.seq_lens)
    assert tokens_of(recorded.graphs.run(plan, settings), 3) == [6, 7, 8]
    again = decoding([0, 1, 2], [0, 0, 11], [True, True, False])
    assert tokens_of(recorded.graphs.run(again, settings), 3) == [8, 9, 12]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_scores_are_no_numbers_is_invalid_and_no_other(temperature):
    recorded, sampler = Recorded(DRAW), Sampler(NUM_ROWS, VOCAB)
    for row in range(3):
        enter(sampler, row, SamplingParams(temperature=temperature))
    for broken_token in (6, -1, 5):
        recorded.broken_token = broken_token
        plan = decoding([0, 1, 2], [5, 6, 7])
        outputs = recorded.graphs.run(plan, sampler.plain_settings(plan.rows, plan.seq_lens))
        assert outputs.tokens.is_invalid[:3].tolist() == [token == broken_token for token in (5, 6, 7)]


def tokens_of(outputs, count):
    return outputs.tokens.token_ids[:count].tolist()


def test_tokens_and_whether_they_are_invalid_come_in_one_piece():
    memory = TokenMemory(5, CPU)
    memory.token_ids[:3] = torch.tensor([7, 1 << 40, 9])
    memory.is_invalid[1] = True
    copies = memory.copies()
    memory.token_ids.zero_()
    token_ids, is_invalid = copies.arrays()
    assert token_ids.tolist() == [7, 1 << 40, 9, 0, 0]
    assert is_invalid.tolist() == [False, True, False, False, False]


def enter(sampler, row, params):
    sampler.add_row(row, params, seed=row, choice=0, prompt_token_ids=[1], output_token_ids=[], end_token_ids=[3])


@pytest.mark.parametrize(
    ("params", "is_simple"),
    [
        ({}, True),
        ({"temperature": 0.0}, True),
        ({"top_k": 3, "top_p": 0.8, "min_p": 0.1}, True),
        ({"min_tokens": 2}, True),  # by now they are there
        ({"min_tokens": 9}, False),
        ({"logprobs": 0}, False),
        ({"typical_p": 0.5}, False),
        ({"repetition_penalty": 1.2}, False),
        ({"logit_bias": {4: 1.0}}, False),
        ({"bad_token_sequences": [[4, 5]]}, False),
    ],
)
def test_what_a_graph_cannot_draw_is_drawn_after_it(params, is_simple):
    sampler = Sampler(NUM_ROWS, VOCAB)
    enter(sampler, 0, SamplingParams())
    enter(sampler, 1, SamplingParams(**params))
    settings = sampler.plain_settings(np.array([0, 1]), np.array([5, 5]))
    assert (settings is not None) == is_simple


class NextToken:
    """A decoder that counts the steps it computes itself."""

    def forward(self, token_ids, batch, hidden=None):
        return batch.output_rows(token_ids[:, None].float())

    def logits(self, hidden):
        return torch.nn.functional.one_hot((hidden[:, 0].long() + 1) % VOCAB, VOCAB).float()


def test_a_runner_replays_decoding_steps_and_computes_all_others():
    made = FakeGraphs()
    runner = ModelRunner(NextToken(), Sampler(NUM_ROWS, VOCAB), CPU)
    padding, last = Padding.in_block(9, BLOCK_SIZE), runner.future_tokens
    runner.record(
        DecodeGraphs(
            num_rows=NUM_ROWS, max_blocks=MAX_BLOCKS, device=CPU, new_graph=made, future_tokens=last, padding=padding
        )
    )
    entered = tuple(
        NewRequestData(
            row=row,
            params=SamplingParams(temperature=0.0, logprobs=0 if row else None),
            seed=0,
            choice=0,
            prompt_token_ids=np.array([1], np.int32),
            output_token_ids=np.array([], np.int32),
            end_token_ids=(),
        )
        for row in range(3)
    )
    prompts = decoding([0, 1, 2])
    chunked = structs.replace(prompts, new_requests=entered, uses_last_sampled=np.zeros(3, np.bool_))
    chunked.samples[1] = False
    assert runner.submit(chunked).result().token_ids.tolist() == [2, 4]
    assert made.num_replays == 0
    sampled = runner.submit(decoding([0, 2], [0, 0], [True, True])).result()
    assert sampled.token_ids.tolist() == [3, 5]
    assert sampled.logprobs.rows.tolist() == [2]
    assert made.num_replays == 1
