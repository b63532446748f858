import numpy as np
import pytest
import torch
from msgspec import structs

from rayinfer.engine.plan.step_plan import NewRequestData
from rayinfer.engine.scheduling.step_deltas import WantedLogprobs, logprobs_by_row
from rayinfer.engine.worker.prompt_scorer import SLICE_BYTES, PromptScorer
from rayinfer.sampling_params import SamplingParams
from support.fakes.step_plans import make_plan

VOCAB = 50
PROMPT = [7, 3, 3, 40, 9, 0, 49, 12]


def new_request(row, prompt=PROMPT, outputs=(), prompt_logprobs=2):
    return NewRequestData(
        row=row,
        params=SamplingParams(prompt_logprobs=prompt_logprobs),
        seed=0,
        choice=0,
        prompt_token_ids=np.array(prompt, np.int32),
        output_token_ids=np.array(outputs, np.int32),
        end_token_ids=(),
    )


def hidden_states(step):
    """Return a state that encodes its row and position."""
    rows = np.repeat(step.rows, np.diff(step.cu_seqlens_q))
    return torch.from_numpy(np.stack((rows, step.positions), axis=1))


def logits_of(hidden):
    seeds = (hidden[:, :1] * 1000 + hidden[:, 1:]).double()
    return torch.sin(seeds * 12.9898 + torch.arange(VOCAB) * 78.233).float() * 5


def expected_of(row, position):
    """Log probabilities of the token at `position`: those that the state before it gives."""
    return logits_of(torch.tensor([[row, position - 1]]))[0].log_softmax(-1)


def score(scorer, chunks):
    step = make_plan(chunks, samples=[False] * len(chunks))
    scored = scorer.score(step, hidden_states(step), logits_of)
    return None if scored is None else scored.result()


@pytest.mark.parametrize("lengths", [(8,), (1, 7), (3, 4, 1), (7, 1), (1,) * 8])
def test_however_a_prompt_is_cut_every_token_but_the_first_is_scored_once(lengths):
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(5))
    first, places = 0, []
    for length in lengths:
        scored = score(scorer, {5: (first, length)})
        if scored is not None:
            assert scored.positions.tolist() == list(range(len(places) + 1, len(places) + 1 + len(scored.rows)))
            places += logprobs_by_row(scored, lambda row: WantedLogprobs(2))[5]
        first += length
    assert score(scorer, {5: (8, 1)}) is None
    assert len(places) == len(PROMPT) - 1
    for position, place in enumerate(places, start=1):
        expected = expected_of(5, position)
        assert next(iter(place)) == PROMPT[position]
        assert set(place) == {PROMPT[position], *expected.topk(2).indices.tolist()}
        for token_id, logprob in place.items():
            assert logprob.logprob == pytest.approx(expected[token_id].item(), abs=1e-5)
            assert logprob.rank == (expected > expected[token_id]).sum() + 1


def test_prompts_of_one_step_are_scored_together_and_others_are_left_out():
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(2, prompt_logprobs=0))
    scorer.add_row(new_request(0, prompt=[1, 2, 3], prompt_logprobs=3))
    scorer.add_row(new_request(4, prompt_logprobs=None))
    scored = score(scorer, {4: (0, 8), 2: (2, 3), 1: (20, 1), 0: (0, 3)})
    assert scored.rows.tolist() == [2, 2, 2, 0, 0]
    assert scored.positions.tolist() == [3, 4, 5, 1, 2]
    assert scored.token_ids[:, 0].tolist() == [40, 9, 0, 2, 3]
    assert scored.token_ids.shape == scored.logprobs.shape == (5, 4)
    assert scored.token_ids.dtype == scored.ranks.dtype == np.int32
    assert scored.logprobs.dtype == np.float32


def test_logits_are_made_of_a_slice_of_states_at_a_time():
    sizes = []

    def counted(hidden):
        sizes.append(len(hidden))
        return logits_of(hidden)

    step = make_plan({5: (0, 8)}, samples=[False])
    whole, sliced = PromptScorer(VOCAB), PromptScorer(SLICE_BYTES // 4 // 3)  # such logits fit three to a slice
    for scorer in (whole, sliced):
        scorer.add_row(new_request(5))
    expected = whole.score(step, hidden_states(step), logits_of).result()
    scored = sliced.score(step, hidden_states(step), counted).result()
    assert sizes == [3, 3, 1]
    assert np.array_equal(scored.token_ids, expected.token_ids)
    assert np.array_equal(scored.logprobs, expected.logprobs)
    assert np.array_equal(scored.ranks, expected.ranks)


def test_a_step_that_failed_is_scored_again():
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(5))
    once, again = score(scorer, {5: (0, 8)}), score(scorer, {5: (0, 8)})
    assert np.array_equal(once.logprobs, again.logprobs)


def test_a_request_that_comes_back_is_scored_again_but_not_its_answer():
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(5))
    score(scorer, {5: (0, 4)})
    scorer.add_row(new_request(1, outputs=(6, 7)))
    assert score(scorer, {1: (4, 6)}).positions.tolist() == [5, 6, 7]


def test_a_row_is_scored_for_the_request_that_has_it_now():
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(5))
    scorer.add_row(structs.replace(new_request(5), params=SamplingParams()))
    assert score(scorer, {5: (0, 8)}) is None


def test_a_prompt_of_one_token_has_nothing_to_score():
    scorer = PromptScorer(VOCAB)
    scorer.add_row(new_request(5, prompt=[3]))
    assert score(scorer, {5: (0, 1)}) is None
