"""Verified drafts against the same sampler without: whatever is drafted, tokens are those of one by one."""

import random

import numpy as np
import pytest
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.plan.step_plan import SampledTokens
from rayinfer.engine.worker.draft_verification import sample_with_drafts
from rayinfer.engine.worker.step_inputs import sampled_lines
from rayinfer.sampling_params import SamplingParams
from support.fakes.step_plans import make_plan
from support.kernels.sampler_requests import MIXED, VOCAB, enter, logits_of

NUM_TOKENS = 24
PROMPT = (10, 11, 12)


def sampler_of(many):
    sampler = Sampler(len(many), VOCAB)
    for row, params in enumerate(many):
        enter(sampler, row, params, seed=row, prompt=PROMPT)
    return sampler


def logits_behind(context):
    """Return the logits of a model of its own: a function of the last three tokens."""
    return logits_of(sum(token * weight for token, weight in zip(context[-3:], (1, 7, 49), strict=True)), spread=3.0)[0]


def one_by_one(many):
    """Return each row's tokens and, where it asks for them, their logprobs."""
    sampler, contexts = sampler_of(many), [list(PROMPT) for _ in many]
    scored = [[] for _ in many]
    rows = np.arange(len(many))
    for place in range(NUM_TOKENS):
        sampled = sampler.sample(
            torch.stack([logits_behind(context) for context in contexts]), rows, np.full(len(rows), len(PROMPT) + place)
        )
        for line, row in enumerate(sampled.scored_lines.tolist()):
            scored[row].append(sampled.logprobs.logprobs[line].tolist())
        for context, token_id in zip(contexts, sampled.token_ids.tolist(), strict=True):
            context.append(token_id)
    return [context[len(PROMPT) :] for context in contexts], scored


def drafted(chance, right):
    """Return a draft of up to four right tokens and up to two of any kind."""
    draft = right[: chance.randrange(5)]
    return draft + [chance.randrange(VOCAB) for _ in range(chance.randrange(3))]


def step(sampler, contexts, drafts, rows):
    chunks = {row: (len(contexts[row]) - 1, 1 + len(drafts[row])) for row in rows}
    token_ids = [token for row in rows for token in (contexts[row][-1], *drafts[row])]
    plan = make_plan(chunks, token_ids=token_ids, num_drafts=[len(drafts[row]) for row in rows])
    prefixes = [[*contexts[row], *drafts[row][:count]] for row in rows for count in range(len(drafts[row]) + 1)]
    assert len(sampled_lines(plan, np.arange(len(rows)))) == len(prefixes) == plan.num_tokens
    return sample_with_drafts(sampler, plan, torch.stack([logits_behind(prefix) for prefix in prefixes]))


def each_of(sampled: SampledTokens, rows):
    tokens = sampled.token_ids.tolist()
    for row, count in zip(rows, sampled.counts.tolist(), strict=True):
        yield row, tokens[:count]
        del tokens[:count]
    assert not tokens


@pytest.mark.parametrize("seed", range(3))
def test_tokens_and_logprobs_are_those_of_one_by_one(seed):
    many = [*MIXED, SamplingParams(logprobs=1, logprob_token_ids=[3, 4, 5]), SamplingParams(logprobs=0)]
    expected, expected_logprobs = one_by_one(many)
    chance, sampler = random.Random(seed), sampler_of(many)
    contexts = [list(PROMPT) for _ in many]
    scored = [[] for _ in many]
    num_accepted = 0
    while rows := [row for row, context in enumerate(contexts) if len(context) - len(PROMPT) < NUM_TOKENS]:
        chance.shuffle(rows)
        left = [NUM_TOKENS + len(PROMPT) - len(context) for context in contexts]
        drafts = {row: drafted(chance, expected[row][-left[row] :])[: left[row] - 1] for row in rows}
        sampled = step(sampler, contexts, drafts, rows)
        for row, tokens in each_of(sampled, rows):
            contexts[row] += tokens
            num_accepted += len(tokens) - 1
        if sampled.logprobs is not None:
            starts = np.flatnonzero(np.diff(sampled.logprobs.rows, prepend=-1))
            assert len(starts) == len(set(sampled.logprobs.rows.tolist()))  # each row's are together
            for row, position, logprobs in zip(
                *(sampled.logprobs.rows.tolist(), sampled.logprobs.positions.tolist(), sampled.logprobs.logprobs),
                strict=True,
            ):
                assert position == len(PROMPT) + len(scored[row])
                scored[row].append(logprobs)
    assert [context[len(PROMPT) :] for context in contexts] == expected
    assert num_accepted > 5 * len(many)
    for row, (params, known) in enumerate(zip(many, expected_logprobs, strict=True)):
        num_top, num_listed = 1 + (params.logprobs or 0), len(params.listed_ids)
        for got, wanted in zip(scored[row], known, strict=True):
            assert got[:num_top].tolist() == wanted[:num_top]
            assert num_listed == 0 or got[-num_listed:].tolist() == wanted[-num_listed:]


def test_a_place_behind_logits_that_are_not_finite_is_the_last():
    sampler = sampler_of([SamplingParams(temperature=0.0), SamplingParams(temperature=0.0)])
    plan = make_plan({0: (2, 4), 1: (2, 2)}, token_ids=[12, 5, 0, 7, 12, 5], num_drafts=[3, 1])
    logits = torch.nn.functional.one_hot(torch.tensor([5, 6, 7, 8, 5, 9]), VOCAB).float()
    logits[1] = float("nan")
    sampled = sample_with_drafts(sampler, plan, logits)
    assert sampled.counts.tolist() == [2, 2]
    assert sampled.token_ids.tolist() == [5, 0, 5, 9]
    assert sampled.is_invalid.tolist() == [True, False]


class FailsOnce(Sampler):
    """A sampler of which one call fails."""

    calls_until = -1

    def sample(self, *arguments, **named):
        self.calls_until -= 1
        if self.calls_until == 0:
            raise MemoryError
        return super().sample(*arguments, **named)


@pytest.mark.parametrize(("calls_until", "counts"), [(2, [1]), (3, [2])])
def test_a_failure_behind_the_first_place_keeps_what_is_sampled(calls_until, counts):
    sampler = FailsOnce(1, VOCAB)
    enter(sampler, 0, SamplingParams(temperature=0.0, frequency_penalty=0.1), prompt=PROMPT)
    sampler.calls_until = calls_until
    plan = make_plan({0: (2, 4)}, token_ids=[12, 5, 6, 7], num_drafts=[3])
    logits = 9 * torch.nn.functional.one_hot(torch.tensor([5, 6, 7, 8]), VOCAB).float()
    assert sample_with_drafts(sampler, plan, logits).counts.tolist() == counts
    sampler.calls_until = 1
    with pytest.raises(MemoryError):  # nothing is recorded: the engine computes the step again
        sample_with_drafts(sampler, plan, logits)


def test_requests_that_sample_nothing_have_no_lines():
    plan = make_plan({0: (0, 3), 1: (5, 3), 2: (4, 1)}, samples=[False, True, True], num_drafts=[0, 2, 0])
    assert sampled_lines(plan, np.flatnonzero(plan.samples)).tolist() == [3, 4, 5, 6]
    assert sampled_lines(plan.without_drafts(), np.flatnonzero(plan.samples)).tolist() == [3, 4]
    assert plan.without_drafts().seq_lens.tolist() == [3, 6, 5]
    assert plan.without_drafts().positions.tolist() == [0, 1, 2, 5, 4]
