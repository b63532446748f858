"""The kernel chooses what the reference chooses, for settings of every kind at once."""

import random

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu import philox, sampling

NUM_ROWS = 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(device, monkeypatch):
    """Several blocks in a row, and not so many numbers that the interpreter takes long."""
    monkeypatch.setattr(sampling, "SAMPLING_BLOCK", 512)


def choose(device, logits, **settings):
    """What kernel and reference choose."""
    columns = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float64,
        "min_p": torch.float32,
        "uniform": torch.float64,
        "is_greedy": torch.bool,
    }
    arguments = [torch.tensor(settings[name], dtype=dtype) for name, dtype in columns.items()]
    expected = reference.sample_rows(logits.to(CPU), *arguments)
    got = sampling.sample_rows(logits, *(each.to(device) for each in arguments))
    return got, expected


def check_same(device, logits, **settings):
    got, expected = choose(device, logits, **settings)
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    assert got.is_invalid.tolist() == expected.is_invalid.tolist()
    return got


def random_logits(dice, vocab_size):
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    logits = torch.randn(NUM_ROWS, vocab_size + 5, generator=generator) * dice.choice([0.1, 2.0, 8.0, 40.0])
    if dice.random() < 0.4:
        logits = (logits * 2).round() / 2  # many ties
    if dice.random() < 0.3:
        logits[:, ::3] = float("-inf")
    return logits.to(dice.choice([torch.float32, torch.bfloat16, torch.float16]))


@pytest.mark.parametrize("seed", range(10))
def test_random_settings_give_the_tokens_of_the_reference(device, seed):
    dice = random.Random(seed)
    vocab_size = dice.choice([1, 7, 255, 256, 700])
    logits = random_logits(dice, vocab_size).to(device)[:, 3 : 3 + vocab_size]

    def drawn(*values):
        return [dice.choice(values) for _ in range(NUM_ROWS)]

    check_same(
        device,
        logits,
        temperature=drawn(0.05, 0.3, 1.0, 1.7, 50.0),
        top_k=drawn(vocab_size, vocab_size, 1, 5, 40, 200),
        top_p=drawn(1.0, 1.0, 0.999, 0.9, 0.5, 0.01),
        min_p=drawn(0.0, 0.0, 0.02, 0.5, 1.0),
        uniform=[dice.choice([0.0, 1 - 2.0**-32, dice.random()]) for _ in range(NUM_ROWS)],
        is_greedy=drawn(False, False, False, True),
    )


PLAIN = {
    "temperature": [1.0] * 3,
    "top_k": [600] * 3,
    "top_p": [1.0] * 3,
    "min_p": [0.0] * 3,
    "uniform": [0.0, 0.5, 1 - 2.0**-32],
    "is_greedy": [False] * 3,
}


@pytest.mark.parametrize("top_p", [0.01, 0.25, 0.5, 0.51, 0.999])
def test_of_tokens_tied_at_top_ps_border_the_highest_ids_stay(device, top_p):
    logits = torch.zeros(3, 600, device=device)
    logits[:, 100:104] = 30.0
    check_same(device, logits, **(PLAIN | {"top_p": [top_p] * 3}))


def test_all_tokens_tied_with_the_kth_stay(device):
    logits = torch.full((3, 600), -20.0, device=device)
    logits[:, [5, 300, 301, 599]] = 1.0
    got = check_same(device, logits, **(PLAIN | {"top_k": [2] * 3}))
    assert got.token_ids.tolist() == [5, 301, 599]


def test_no_token_below_the_kth_or_below_top_ps_border_is_kept(device):
    logits = torch.linspace(0, 1, 600, device=device).repeat(3, 1)
    least = PLAIN | {"uniform": [0.0] * 3}  # the first token that is kept
    assert check_same(device, logits, **(least | {"top_k": [1, 3, 450]})).token_ids.tolist() == [599, 597, 150]
    check_same(device, logits, **(least | {"top_p": [0.1, 0.5, 0.9]}))
    check_same(device, logits, **(least | {"top_k": [3, 40, 450], "top_p": [0.3, 0.5, 0.9]}))


def test_zeros_of_both_signs_are_equal_and_numbers_near_them_are_not(device):
    logits = torch.full((3, 600), -1.0, device=device)
    logits[:, [1, 280, 590]] = torch.tensor([-0.0, 0.0, 1e-30], device=device)
    for top_k in (1, 2, 3):
        check_same(device, logits, **(PLAIN | {"top_k": [top_k] * 3, "temperature": [1.0, 1e-5, 3.0]}))


def test_rows_whose_best_is_no_number_are_invalid_and_others_are_not(device):
    logits = torch.zeros(3, 600, device=device)
    logits[0, 400] = float("nan")
    logits[1] = float("-inf")
    got = check_same(device, logits, **PLAIN)
    assert got.is_invalid.tolist() == [True, True, False]
    logits[1, 3] = float("inf")
    assert check_same(device, logits, **(PLAIN | {"is_greedy": [True] * 3})).is_invalid.tolist() == [True, True, False]


def test_the_greatest_number_of_each_row_and_its_first_place(device):
    rows = torch.randn(6, 603, device=device)[:, 2:602]
    rows[0, [40, 555]] = 9.0
    rows[1, [10, 550, 580]] = torch.tensor([50.0, float("nan"), float("nan")], device=device)
    rows[2] = float("-inf")
    rows[3, 599] = float("inf")
    rows[4, 0] = 20.0
    for each in (rows, rows.to(torch.bfloat16)):
        got, expected = sampling.row_max(each), reference.row_max(each.to(CPU))
        torch.testing.assert_close(got.values.to(CPU), expected.values, atol=0, rtol=0, equal_nan=True)
        assert got.indices.tolist() == expected.indices.tolist()


def test_no_rows_are_no_launch(device):
    none = torch.empty(0, 600, device=device)
    column = torch.empty(0, device=device)
    assert sampling.row_max(none).indices.shape == (0,)
    assert sampling.sample_rows(none, column, column.int(), column, column, column, column.bool()).token_ids.shape == (
        0,
    )


def test_the_numbers_that_rows_are_drawn_by_are_those_of_the_reference(device):
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**63), 2**63 - 1, (300,), generator=generator)
    positions = torch.randint(0, 2**40, (300,), generator=generator)
    choices = torch.randint(0, 100, (300,), generator=generator)
    got = philox.uniform(*(each.to(device) for each in (seeds, positions, choices)))
    assert torch.equal(got.to(CPU), reference.uniform(seeds, positions, choices))
