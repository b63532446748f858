import pytest
import torch
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from rayinfer_kernels.reference.inverse_cdf import padded_to_blocks
from rayinfer_kernels.reference.truncation import keep_top_k_, keep_top_k_top_p_

VOCAB = 1000
NO_IDS = torch.zeros(1, 0, dtype=torch.int64)


def scores_of(seed, num_rows=8, spread=3.0):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def kept_by_top_k(scores, top_k):
    padded = padded_to_blocks(scores)
    keep_top_k_(padded, torch.tensor(top_k), max(top_k))
    return padded[:, :VOCAB] > float("-inf")


def kept_by_both(scores, top_k, top_p):
    padded = padded_to_blocks(scores)
    keep_top_k_top_p_(padded, torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64))
    return padded[:, :VOCAB] > float("-inf")


def kept_by_transformers(scores, top_k, top_p):
    """Row by row, as every row has its own settings."""
    rows = []
    for row, k, p in zip(scores.split(1), top_k, top_p, strict=True):
        kept = TopKLogitsWarper(k)(NO_IDS, row)
        rows.append(TopPLogitsWarper(p)(NO_IDS, kept) if p < 1.0 else kept)
    return torch.cat(rows) > float("-inf")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=["few ties", "many ties"])
def test_top_k_keeps_what_transformers_keeps(seed, rounding):
    scores = scores_of(seed).to(rounding).float()
    top_k = [1, 2, 3, 10, 50, 64, 100, 128]
    assert torch.equal(kept_by_top_k(scores, top_k), kept_by_transformers(scores, top_k, [1.0] * 8))
    assert torch.equal(kept_by_both(scores, top_k, [1.0] * 8), kept_by_transformers(scores, top_k, [1.0] * 8))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.3, 3.0, 12.0])
def test_top_p_keeps_what_transformers_keeps(seed, spread):
    scores = scores_of(seed, spread=spread)
    top_p = [0.01, 0.1, 0.35, 0.5, 0.8, 0.9, 0.95, 0.999]
    assert torch.equal(kept_by_both(scores, [VOCAB] * 8, top_p), kept_by_transformers(scores, [VOCAB] * 8, top_p))


@pytest.mark.parametrize("seed", range(5))
def test_of_tokens_tied_at_the_border_as_many_stay_as_in_transformers_and_those_have_the_highest_ids(seed):
    scores = (scores_of(seed, spread=1.0) * 2).round() / 2
    top_p = [0.01, 0.1, 0.35, 0.5, 0.8, 0.9, 0.95, 0.999]
    kept = kept_by_both(scores, [VOCAB] * 8, top_p)
    expected = kept_by_transformers(scores, [VOCAB] * 8, top_p)  # its sort leaves open which of the tied go
    num_split = 0
    for row, row_kept, row_expected in zip(scores, kept, expected, strict=True):
        assert torch.equal(row[row_kept].sort().values, row[row_expected].sort().values)
        tied = row == row[row_kept].min()
        num_kept = int((tied & row_kept).sum())
        assert torch.equal((tied & row_kept).nonzero(), tied.nonzero()[-num_kept:])
        num_split += num_kept < tied.sum()
    assert num_split > 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_top_p_looks_at_the_mass_that_top_k_left(seed, spread):
    scores = scores_of(seed, spread=spread)
    top_k, top_p = [1, 5, 20, 100, 400, 999, 1000, 1000], [0.5, 0.5, 0.9, 0.9, 0.3, 0.95, 0.6, 1.0]
    assert torch.equal(kept_by_both(scores, top_k, top_p), kept_by_transformers(scores, top_k, top_p))


def test_the_fewest_tokens_that_reach_top_p_exactly_are_enough():
    scores = torch.full((1, VOCAB), float("-inf"))
    scores[0, :10] = 0.0
    for tenths in range(1, 11):
        assert kept_by_both(scores, [VOCAB], [tenths / 10]).sum() == tenths


def test_the_smallest_top_p_keeps_the_most_likely_token_alone():
    scores = scores_of(0)
    kept = kept_by_both(scores, [VOCAB] * 8, [1e-30] * 8)
    assert torch.equal(kept.nonzero()[:, 1], scores.argmax(-1))


def test_banned_tokens_stay_banned():
    scores = scores_of(0)
    scores[:, 100:] = float("-inf")
    assert not kept_by_both(scores, [VOCAB] * 8, [0.999] * 8)[:, 100:].any()
    assert not kept_by_top_k(scores, [128] * 8)[:, 100:].any()


def test_a_nan_row_leaves_the_others_alone():
    scores = scores_of(0)
    spoilt = scores.clone()
    spoilt[3, 7] = float("nan")
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(
        kept_by_both(spoilt, [50] * 8, [0.9] * 8)[others], kept_by_both(scores, [50] * 8, [0.9] * 8)[others]
    )
    assert torch.equal(kept_by_top_k(spoilt, [50] * 8)[others], kept_by_top_k(scores, [50] * 8)[others])
