import numpy as np
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.worker.static_runner import StaticRunner, StaticShapes, StepShape
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams

ROWS, LONGEST, BLOCK_SIZE, BUDGET, VOCAB = 3, 40, 8, 16, 11
NUM_BLOCKS = 20
CPU = torch.device("cpu")


class NextToken:
    """A decoder whose best next token is the one after the last; it keeps the sizes of what it is given."""

    def __init__(self):
        self.shapes = []
        self.num_logits = []

    def forward(self, token_ids, batch, hidden=None):
        assert len(batch.positions) == len(batch.slot_mapping) == len(token_ids) == batch.cu_seqlens_q[-1]
        assert len(batch.rows) == len(batch.seq_lens) == len(batch.block_tables) == len(batch.cu_seqlens_q) - 1
        self.shapes.append(StepShape(len(batch.rows), len(token_ids)))
        return batch.output_rows(token_ids[:, None].float())

    def logits(self, hidden):
        self.num_logits.append(len(hidden))
        return torch.nn.functional.one_hot((hidden[:, 0].long() + 1) % VOCAB, VOCAB).float()


class Executor:
    """Only steps: nothing is copied or given back."""

    max_concurrent_batches = 1
    supports_async_scheduling = False
    stage_idle_shares = ()

    def __init__(self, runner):
        self.submit = runner.submit

    def check(self):
        pass


def make_engine():
    decoder = NextToken()
    shapes = StaticShapes(
        num_rows=ROWS, max_step_tokens=BUDGET, max_model_len=LONGEST, block_size=BLOCK_SIZE, scratch_block=NUM_BLOCKS
    )
    runner = StaticRunner(decoder, Sampler(ROWS + 1, VOCAB), CPU, shapes)
    runner.warm_up()
    scheduler = Scheduler(
        max_num_seqs=ROWS,
        max_num_batched_tokens=BUDGET,
        max_model_len=LONGEST,
        block_manager=BlockManager(NUM_BLOCKS, BLOCK_SIZE),
    )
    description = ModelDescription(name="", max_model_len=LONGEST, vocab_size=VOCAB, created=0, block_size=BLOCK_SIZE)
    return Engine(description=description, scheduler=scheduler, executor=Executor(runner)), decoder, shapes


def request(number, prompt_len, max_tokens, **params):
    return GenerationRequest(
        request_id=str(number),
        prompt_token_ids=[(number + i) % VOCAB for i in range(prompt_len)],
        sampling_params=SamplingParams(**{"temperature": 0.0} | params, max_tokens=max_tokens),
    )


def test_warming_up_runs_every_shape_once_and_samples_for_every_row():
    _, decoder, shapes = make_engine()
    assert decoder.shapes == list(shapes.shapes)
    assert decoder.num_logits == [ROWS] * len(shapes.shapes)


def test_every_step_has_a_warmed_up_shape_and_right_tokens():
    engine, decoder, shapes = make_engine()
    lengths = [(1, 20), (30, 5), (12, 12), (3, 1), (25, 9), (17, 17), (2, 30)]
    for number, (prompt_len, max_tokens) in enumerate(lengths):
        engine.add_request(request(number, prompt_len, max_tokens))
    tokens = {str(number): [] for number in range(len(lengths))}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    for number, (prompt_len, max_tokens) in enumerate(lengths):
        assert tokens[str(number)] == [(number + prompt_len + i) % VOCAB for i in range(max_tokens)]
    assert set(decoder.shapes) <= set(shapes.shapes)
    assert len(set(decoder.shapes)) > 2
    assert set(decoder.num_logits) == {ROWS}


def test_a_prompt_whose_tokens_are_scored_may_be_cut_anywhere():
    engine, _, _ = make_engine()
    engine.add_request(request(0, 30, 4, prompt_logprobs=1, logprobs=1))
    engine.add_request(request(1, 20, 0, prompt_logprobs=0))
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
    scored = {delta.request_id: delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs}
    assert {name: len(logprobs) for name, logprobs in scored.items()} == {"0": 30, "1": 20}
    assert all(len(delta.logprobs) == 1 for delta in deltas if delta.token_ids)


def test_a_step_that_fails_is_tried_again_in_halves():
    engine, decoder, shapes = make_engine()
    forward = decoder.forward

    def fail_for_token_ten(token_ids, batch, embedded=None):
        if 10 in token_ids:
            raise ValueError("no such token")
        return forward(token_ids, batch, embedded)

    decoder.forward = fail_for_token_ten
    engine.add_request(request(0, 3, 4))
    engine.add_request(request(8, 3, 4))  # 8, 9, 10
    reasons = {}
    while engine.has_unfinished_requests:
        reasons |= {delta.request_id: delta.finish_reason for delta in engine.step() if delta.finish_reason}
    assert reasons == {"0": "length", "8": "error"}
    assert set(decoder.shapes) <= set(shapes.shapes)


def test_only_the_steps_own_requests_have_results():
    engine, _, _ = make_engine()
    engine.add_request(request(0, 3, 4))
    (delta,) = engine.step()
    assert delta.token_ids == [3]
    assert np.asarray(delta.token_ids).size == 1
