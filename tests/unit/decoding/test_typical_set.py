import pytest
import torch
from transformers.generation.logits_process import TypicalLogitsWarper

from rayinfer.decoding.typical_set import keep_typical_
from rayinfer_kernels import ops

VOCAB = 1000
NO_IDS = torch.zeros(1, 0, dtype=torch.int64)
TYPICAL_P = [0.001, 0.05, 0.2, 0.35, 0.5, 0.8, 0.95, 0.999]


def scores_of(seed, num_rows=8, spread=3.0):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def kept(scores, typical_p):
    weights = ops.to_weights_(ops.padded_to_blocks(scores), scores.amax(-1, keepdim=True))
    keep_typical_(weights, torch.tensor(typical_p, dtype=torch.float64))
    return weights[:, :VOCAB] > 0


def kept_by_transformers(scores, typical_p):
    rows = [TypicalLogitsWarper(mass)(NO_IDS, row) for row, mass in zip(scores.split(1), typical_p, strict=True)]
    return torch.cat(rows) > float("-inf")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spread", [0.3, 3.0, 9.0])
def test_it_keeps_what_transformers_keeps(seed, spread):
    scores = scores_of(seed, spread=spread)
    assert torch.equal(kept(scores, TYPICAL_P), kept_by_transformers(scores, TYPICAL_P))


@pytest.mark.parametrize("seed", range(4))
def test_equally_likely_tokens_stay_or_go_together(seed):
    scores = (scores_of(seed) * 2).round() / 2
    assert torch.equal(kept(scores, TYPICAL_P), kept_by_transformers(scores, TYPICAL_P))


def test_the_most_likely_token_may_be_untypical():
    scores = torch.zeros(1, VOCAB)
    scores[0, 7] = 5.0
    found = kept(scores, [0.5])
    assert not found[0, 7]
    assert found.sum() == VOCAB - 1


def test_what_was_banned_before_counts_for_nothing():
    scores = scores_of(0)
    scores[:, 100:] = float("-inf")
    found = kept(scores, TYPICAL_P)
    assert not found[:, 100:].any()
    assert torch.equal(found, kept_by_transformers(scores, TYPICAL_P))


@pytest.mark.parametrize("typical_p", [1e-30, 1 - 1e-9])
def test_at_least_one_token_stays_however_small_or_large_the_mass(typical_p):
    found = kept(scores_of(3), [typical_p] * 8)
    assert (found.sum(-1) >= 1).all()


def test_a_row_with_one_token_left_keeps_it():
    scores = torch.full((1, VOCAB), float("-inf"))
    scores[0, 3] = 1.0
    assert kept(scores, [0.2]).nonzero().tolist() == [[0, 3]]


def test_a_nan_row_leaves_the_others_alone():
    scores = scores_of(0)
    spoilt = scores.clone()
    spoilt[3, 7] = float("nan")
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(kept(spoilt, TYPICAL_P)[others], kept(scores, TYPICAL_P)[others])


def test_a_row_keeps_the_same_tokens_in_any_batch():
    scores = scores_of(5, num_rows=24, spread=1.0)
    together = kept(scores, TYPICAL_P * 3)
    for row, typical_p in enumerate(TYPICAL_P * 3):
        assert torch.equal(kept(scores[row : row + 1], [typical_p])[0], together[row])
