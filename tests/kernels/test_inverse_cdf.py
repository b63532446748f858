import pytest
import torch

from rayinfer_kernels.reference.inverse_cdf import BLOCK_SIZE, first_exceeding, padded_to_blocks, to_weights_


def shares(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("width", [BLOCK_SIZE, 4 * BLOCK_SIZE, 37 * BLOCK_SIZE])
def test_it_finds_what_one_long_sum_finds(width):
    generator = torch.Generator().manual_seed(width)
    weights = torch.rand(200, width, generator=generator) * (torch.rand(200, width, generator=generator) < 0.3)
    share = torch.rand(200, generator=generator, dtype=torch.float64)
    ends = weights.double().cumsum(-1)
    expected = (ends <= share[:, None] * ends[:, -1:]).sum(-1)
    assert torch.equal(first_exceeding(weights, share), expected)


def test_a_share_that_ends_exactly_at_a_border_goes_to_the_next_weight():
    weights = torch.zeros(3, 2 * BLOCK_SIZE)
    weights[:, 3], weights[:, 300] = 1.0, 1.0
    assert first_exceeding(weights, shares(0.499, 0.5, 0.501)).tolist() == [3, 300, 300]


def test_the_smallest_and_the_largest_share_find_the_first_and_the_last_weight_above_zero():
    weights = torch.zeros(2, 3 * BLOCK_SIZE)
    weights[:, 290:510] = torch.rand(220, generator=torch.Generator().manual_seed(1)) + 0.1
    assert first_exceeding(weights, shares(0.0, 1 - 2.0**-40)).tolist() == [290, 509]


def test_no_index_of_weight_zero_is_returned_however_close_the_share_is_to_one():
    generator = torch.Generator().manual_seed(2)
    weights = (torch.randn(2000, 2 * BLOCK_SIZE, generator=generator) * 3).exp()  # so that float64 sums must round
    weights[:, BLOCK_SIZE - 5 :] = 0.0
    found = first_exceeding(weights, torch.full((2000,), 1 - 2.0**-53, dtype=torch.float64))
    assert (found < BLOCK_SIZE - 5).all()


@pytest.mark.parametrize("weight", [float("nan"), 0.0])
def test_a_row_without_a_sum_to_share_gets_an_index_within_the_row(weight):
    found = first_exceeding(torch.full((3, 2 * BLOCK_SIZE), weight), shares(0.0, 0.5, 0.999))
    assert ((found >= 0) & (found < 2 * BLOCK_SIZE)).all()


def test_the_best_weighs_one_and_what_float32_cannot_hold_weighs_nothing():
    scores = torch.tensor([[5.0, 4.0, -80.0, -85.0, -150.0, float("-inf")]])
    weights = to_weights_(scores, torch.tensor([[5.0]]))
    torch.testing.assert_close(weights[0, :3], torch.tensor([0.0, -1.0, -85.0]).exp())
    assert weights[0, 3:].tolist() == [0.0, 0.0, 0.0]


def test_a_row_with_nan_gets_an_index_within_the_row():
    weights = torch.ones(2, 2 * BLOCK_SIZE)
    weights[0, 17] = float("nan")
    assert 0 <= first_exceeding(weights, shares(0.7, 0.7))[0] < 2 * BLOCK_SIZE


def test_padding_fills_whole_blocks_with_what_cannot_be_drawn():
    padded = padded_to_blocks(torch.zeros(2, BLOCK_SIZE + 1))
    assert padded.shape == (2, 2 * BLOCK_SIZE)
    assert (padded[:, BLOCK_SIZE + 1 :] == float("-inf")).all()
    assert padded_to_blocks(torch.zeros(1, BLOCK_SIZE)).shape == (1, BLOCK_SIZE)
