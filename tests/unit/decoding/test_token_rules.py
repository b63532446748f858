import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from rayinfer.decoding.token_rules import TokenRules
from rayinfer.sampling_params import SamplingParams

VOCAB = 60
HISTORY = [7, 3, 9]
BIASES = {3: 2.5, 0: -100.0, 59: 100.0, 20: 0.0}
ALLOWED = [5, 9, 5, 58, 0]
SEQUENCES = [[4], [3, 9, 20], [9, 21], [8, 22], [50]]
RULES = {
    "bias": SamplingParams(logit_bias=BIASES),
    "allowed": SamplingParams(allowed_token_ids=ALLOWED),
    "bad": SamplingParams(bad_token_sequences=SEQUENCES),
    "all": SamplingParams(logit_bias=BIASES, allowed_token_ids=ALLOWED, bad_token_sequences=[[9, 58], [5]]),
}


def scores_of(seed, num_rows=1):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def enter(rules, row, params, history=HISTORY):
    rules.add_row(row, params, np.array(history[:1]), np.array(history[1:]))


def ruled(rules, scores, *rows):
    scores = scores.clone()
    rules.add_biases_(scores, np.array(rows))
    rules.forbid_(scores, np.array(rows))
    return scores


def ruled_alone(params, scores):
    rules = TokenRules(1, torch.device("cpu"))
    enter(rules, 0, params)
    return ruled(rules, scores, 0)


@pytest.mark.parametrize(
    ("params", "processor"),
    [
        (RULES["bias"], SequenceBiasLogitsProcessor([[[token_id], bias] for token_id, bias in BIASES.items()])),
        (RULES["allowed"], PrefixConstrainedLogitsProcessor(lambda batch, ids: ALLOWED, 1)),
        (RULES["bad"], NoBadWordsLogitsProcessor(SEQUENCES)),
        (SamplingParams(bad_token_sequences=[[4], [50], [4]]), SuppressTokensLogitsProcessor([4, 50])),
    ],
    ids=["bias", "allowed", "bad sequences", "bad tokens"],
)
@pytest.mark.parametrize("seed", range(4))
def test_each_rule_is_that_of_transformers(params, processor, seed):
    expected = processor(torch.tensor([HISTORY]), scores_of(seed))
    torch.testing.assert_close(ruled_alone(params, scores_of(seed)), expected, atol=1e-5, rtol=0)


def test_rows_with_different_rules_and_rows_without_share_a_batch():
    rules = TokenRules(8, torch.device("cpu"))
    for row, params in enumerate(RULES.values()):
        enter(rules, 2 * row, params)
    scores = scores_of(1, num_rows=6)
    together = ruled(rules, scores, 4, 1, 0, 6, 2, 3)
    assert torch.equal(together[[1, 5]], scores[[1, 5]])
    for line, name in {0: "bad", 2: "bias", 3: "all", 4: "allowed"}.items():
        assert torch.equal(together[line : line + 1], ruled_alone(RULES[name], scores[line : line + 1]))


def test_nothing_is_left_of_a_row_that_was_left():
    rules = TokenRules(2, torch.device("cpu"))
    enter(rules, 0, RULES["all"])
    rules.remove_row(0)
    rules.remove_row(1)
    assert torch.equal(ruled(rules, scores_of(2), 0), scores_of(2))
    enter(rules, 0, SamplingParams(logit_bias={1: 1.0}))
    assert (ruled(rules, scores_of(2), 0) != scores_of(2)).nonzero().tolist() == [[0, 1]]
