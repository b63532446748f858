import numpy as np
import pytest
import torch
from msgspec import structs

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.step_plan import NewRequestData
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams
from support.fakes.step_plans import make_plan

VOCAB = 11
GREEDY = SamplingParams(temperature=0.0)


class NextToken:
    """A decoder whose best next token is the one after the last."""

    def __init__(self):
        self.rows_asked_for = []

    def forward(self, token_ids, batch, hidden=None):
        assert batch.positions.dtype == torch.int64
        return batch.output_rows(token_ids[:, None].float())

    def logits(self, hidden):
        self.rows_asked_for.append(len(hidden))
        return torch.nn.functional.one_hot((hidden[:, 0].long() + 1) % VOCAB, VOCAB).float()


def plan(parts, samples, new_requests=()):
    token_ids = [token for tokens in parts.values() for token in tokens]
    chunks = {row: (0, len(tokens)) for row, tokens in parts.items()}
    return make_plan(chunks, token_ids=token_ids, samples=samples, new_requests=new_requests)


def new_request_data(row, params=GREEDY):
    return NewRequestData(
        row=row,
        params=params,
        seed=0,
        choice=0,
        prompt_token_ids=np.array([1], np.int32),
        output_token_ids=np.array([], np.int32),
        end_token_ids=(),
    )


def test_only_requests_whose_last_token_is_in_get_a_new_one_in_the_plans_order():
    decoder = NextToken()
    runner = ModelRunner(decoder, Sampler(4, VOCAB), torch.device("cpu"))
    step = plan({2: [5, 6], 0: [1, 2, 3], 3: [9]}, [True, False, True], map(new_request_data, (0, 2, 3)))
    sampled = runner.submit(step).result()
    assert sampled.token_ids.tolist() == [7, 10]
    assert sampled.is_invalid.tolist() == [False, False]
    assert decoder.rows_asked_for == [2]


def test_a_step_of_chunks_alone_computes_no_logits():
    decoder = NextToken()
    runner = ModelRunner(decoder, Sampler(4, VOCAB), torch.device("cpu"))
    sampled = runner.submit(plan({1: [5, 6]}, [False], [new_request_data(1)])).result()
    assert len(sampled.token_ids) == len(sampled.is_invalid) == 0
    assert decoder.rows_asked_for == []


def test_a_row_without_a_request_is_an_error():
    runner = ModelRunner(NextToken(), Sampler(4, VOCAB), torch.device("cpu"))
    with pytest.raises(InvalidParameter, match="1"):
        runner.submit(plan({1: [5]}, [True]))


def test_a_draw_is_that_of_the_position_which_the_new_token_will_have():
    params, tokens = SamplingParams(temperature=2.0), [4, 8, 15]
    for seed in range(20):
        row = structs.replace(new_request_data(0, params), seed=seed)
        runner = ModelRunner(NextToken(), Sampler(1, VOCAB), torch.device("cpu"))
        drawn = runner.submit(plan({0: tokens}, [True], [row])).result().token_ids
        logits = torch.nn.functional.one_hot(torch.tensor([(tokens[-1] + 1) % VOCAB]), VOCAB).float()
        sampler = Sampler(1, VOCAB)
        sampler.add_row(0, params, seed=seed, choice=0, prompt_token_ids=[1], output_token_ids=[], end_token_ids=())
        assert drawn.tolist() == sampler.sample(logits, np.array([0]), np.array([len(tokens)])).token_ids.tolist()


def test_log_probabilities_come_for_the_rows_that_asked_with_their_positions():
    asking = new_request_data(3, SamplingParams(temperature=0.0, logprobs=2))
    runner = ModelRunner(NextToken(), Sampler(4, VOCAB), torch.device("cpu"))
    step = plan(
        {2: [5, 6], 3: [9], 0: [1, 2, 3]}, [True, True, True], [new_request_data(2), asking, new_request_data(0)]
    )
    sampled = runner.submit(step).result()
    scored = sampled.logprobs
    assert scored.rows.tolist() == [3]
    assert scored.positions.tolist() == [1]
    assert scored.token_ids.tolist() == [[10, 10, 0]]
    best = -np.log1p((VOCAB - 1) / np.e)
    assert scored.logprobs == pytest.approx(np.array([[best, best, best - 1]]), abs=1e-6)
    assert scored.ranks.tolist() == [1]
    assert sampled.prompt_logprobs is None


def test_no_logprobs_for_requests_without_them():
    runner = ModelRunner(NextToken(), Sampler(4, VOCAB), torch.device("cpu"))
    sampled = runner.submit(plan({2: [5, 6]}, [True], [new_request_data(2)])).result()
    assert sampled.logprobs is None
    assert sampled.prompt_logprobs is None


@pytest.mark.parametrize("samples", [True, False])
def test_a_prompt_is_scored_whether_or_not_its_chunk_ends_in_a_new_token(samples):
    decoder = NextToken()
    runner = ModelRunner(decoder, Sampler(4, VOCAB), torch.device("cpu"))
    row = structs.replace(
        new_request_data(1, SamplingParams(prompt_logprobs=1)), prompt_token_ids=np.array([4, 5, 9], np.int32)
    )
    sampled = runner.submit(plan({1: [4, 5, 9]}, [samples], [row])).result()
    assert sampled.prompt_logprobs.positions.tolist() == [1, 2]
    assert sampled.prompt_logprobs.token_ids.tolist() == [[5, 5], [9, 6]]
    assert sampled.prompt_logprobs.ranks.tolist() == [1, 10]
    assert decoder.rows_asked_for == [2, 1][: 1 + samples]
    assert len(sampled.token_ids) == samples


class RecordedSlots:
    """Adapters of which only what happens to slots is kept."""

    def __init__(self):
        self.calls = []

    def fill_slot(self, decoder, slot, digest):
        self.calls.append(("fill", slot, digest))

    def empty_slots(self, decoder, slots):
        self.calls.append(("empty", *slots))


def test_slots_are_emptied_before_they_are_filled_and_not_again_when_a_part_is_repeated():
    runner = ModelRunner(NextToken(), Sampler(4, VOCAB), torch.device("cpu"))
    runner.adapters = RecordedSlots()
    arriving = structs.replace(new_request_data(1), adapter="a", adapter_slot=0)
    step = structs.replace(plan({1: [5], 2: [6]}, [False, False], [arriving]), emptied_adapter_slots=(2, 0))
    part = step.part(0, 1)
    assert [each.adapter for each in part.new_requests] == ["a"]
    runner.submit(part)
    assert runner.adapters.calls == [("fill", 0, "a")]
    runner.submit(structs.replace(part, emptied_adapter_slots=(2, 0)))
    assert runner.adapters.calls[1:] == [("empty", 2, 0), ("fill", 0, "a")]
