"""The kernel chooses what the reference chooses, for settings of every kind at once."""

import cProfile
import itertools
import pstats
import random
from dataclasses import replace

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.gpu.argmax import argmax
from rayinfer_kernels.gpu.kernels import GpuKernels
from rayinfer_kernels.gpu.language import IS_INTERPRETED
from rayinfer_kernels.gpu.mask_rows import mask_rows_
from rayinfer_kernels.gpu.sampling import philox, sampling
from rayinfer_kernels.gpu.tuning import SamplingTuning
from rayinfer_kernels.implementation import RowMasks
from support.kernels.pairwise import Void
from support.kernels.row_layouts import LAYOUTS, laid_out

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


# Several blocks in a row, and not so many numbers that the interpreter takes long.
SMALL_BLOCKS = SamplingTuning(block=128, choice_block=512, candidate_block=32, max_candidates=128)


def choose(device, logits, tuning, **settings):
    """Return what kernel and reference choose."""
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
    got = sampling.sample_rows(logits, *(each.to(device) for each in arguments), tuning=tuning)
    return got, expected


def check_same(device, logits, tuning=SMALL_BLOCKS, **settings):
    got, expected = choose(device, logits, tuning, **settings)
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    assert got.is_invalid.tolist() == expected.is_invalid.tolist()
    return got


def random_logits(num_rows, vocab_size, kind, dtype):
    logits = torch.randn(num_rows, vocab_size) * 3
    if kind == "ties":
        logits = (logits * 2).round() / 2
    if kind == "holes":
        logits[:, 1::3] = float("-inf")
    return logits.to(dtype)


@pytest.mark.axes(
    vocab_size=[700, Void(1), 6, 512],
    top_k=["all", 1, 5, 200],
    top_p=[1.0, 0.999, 0.5, 0.01],
    min_p=[0.0, 0.02, 1.0],
    temperature=[1.0, 0.05, 50.0],
    dtype=DTYPES,
    kind=["numbers", "ties", "holes"],
    layout=[*LAYOUTS, Void("no rows")],
)
def test_the_tokens_are_those_of_the_reference(case, device):
    """Of four rows the last is greedy."""
    num_rows, layout = (0, "whole") if case["layout"] == "no rows" else (4, case["layout"])
    logits = random_logits(num_rows, case["vocab_size"], case["kind"], case["dtype"])
    top_k = case["vocab_size"] if case["top_k"] == "all" else case["top_k"]
    check_same(
        device,
        laid_out(logits, layout, device),
        top_k=[top_k] * num_rows,
        **{name: [case[name]] * num_rows for name in ("temperature", "top_p", "min_p")},
        uniform=[0.0, 0.37, 1 - 2.0**-32, 0.5][:num_rows],
        is_greedy=[False, False, False, True][:num_rows],
    )


@pytest.mark.parametrize("seed", range(3))
def test_every_row_has_settings_of_its_own(device, seed):
    dice, num_rows = random.Random(seed), 6

    def drawn(*values):
        return [dice.choice(values) for _ in range(num_rows)]

    check_same(
        device,
        random_logits(num_rows, 700, dice.choice(["numbers", "ties", "holes"]), torch.float32).to(device),
        temperature=drawn(0.05, 0.3, 1.0, 1.7, 50.0),
        top_k=drawn(700, 1, 5, 40, 200),
        top_p=drawn(1.0, 0.999, 0.9, 0.5, 0.01),
        min_p=drawn(0.0, 0.02, 0.5, 1.0),
        uniform=[dice.random() for _ in range(num_rows)],
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
    assert check_same(device, logits, **(least | {"top_k": [1, 450, 599]})).token_ids.tolist() == [599, 150, 1]
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


@pytest.mark.parametrize(
    ("num_equal", "most_parts"),
    [
        pair if pair in {(128, 1), (129, 2)} else pytest.param(*pair, marks=pytest.mark.every_case)
        for pair in itertools.product([127, 128, 129], [1, 2, 32])
    ],
)
def test_candidates_that_just_have_room_and_that_have_none(device, num_equal, most_parts):
    """Of 128, all equal; they lie in several parts of the row and the others have no weight, or much."""
    tuning = replace(SMALL_BLOCKS, max_row_parts=most_parts)
    logits = torch.full((3, 600), -2.0, device=device)
    logits[1] = -200.0
    logits[2] = float("-inf")
    logits[:, torch.randperm(600)[:num_equal]] = 1.0
    for top_k, top_p in ((600, 0.5), (600, 0.9999999), (num_equal, 1.0), (num_equal + 1, 0.7), (1, 0.3)):
        check_same(device, logits, tuning, **(PLAIN | {"top_k": [top_k] * 3, "top_p": [top_p] * 3}))


def test_rows_are_searched_where_the_candidates_miss_a_part_of_the_nucleus(device):
    """A cut that follows from 16 scores leaves most of the nucleus below it, if that is nearly the whole row."""
    tuning = replace(SMALL_BLOCKS, block=16, max_candidates=512, max_row_parts=1)
    logits = (torch.randn(3, 600) * 0.5).to(device)
    for top_p in (0.9, 0.99, 0.9999):
        for uniform in ([0.0, 0.01, 0.3], [0.6, 0.9, 1 - 2.0**-32]):
            check_same(device, logits, tuning, **(PLAIN | {"top_p": [top_p] * 3, "uniform": uniform}))


SHAPES_OF_ROWS = {
    "flat": lambda: torch.zeros(3, 600),
    "nearly flat": lambda: torch.randn(3, 600) * 1e-3,
    "wide": lambda: torch.randn(3, 600) * 0.5,
    "peaked": lambda: torch.randn(3, 600) * 3 + torch.eye(3, 600).roll(300, 1) * 40,
    "few": lambda: torch.randn(3, 600).masked_fill(torch.arange(600) % 97 > 0, float("-inf")),
    "neighbors": lambda: torch.randn(3, 600) + 20.0 * (torch.arange(600) // 40 == 7),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.every_case) if kind not in ("wide", "few") else kind
        for kind in SHAPES_OF_ROWS
    ],
)
def test_rows_of_every_shape_under_settings_from_the_least_to_the_greatest(device, kind):
    logits = SHAPES_OF_ROWS[kind]().to(device)
    top_ks = ([1, 2, 5], [30, 300, 599], [600] * 3)
    top_ps = ([1e-9, 0.3, 0.9], [0.99, 0.9999999, 1.0])
    sharpness = (([0.05, 1.0, 20.0], [0.0] * 3), ([0.6] * 3, [0.0, 0.05, 1.0]))
    for k, p in itertools.product(range(3), range(2)):  # every two of them meet
        temperature, min_p = sharpness[(k + p) % 2]
        settings = {"top_k": top_ks[k], "top_p": top_ps[p], "temperature": temperature, "min_p": min_p}
        check_same(device, logits, **(PLAIN | settings | {"uniform": [0.0, 0.7, 1 - 2.0**-32]}))


def test_scores_that_the_temperature_makes_equal_are_tied(device):
    """Neighboring numbers of float32 whose quotients round to the same number, at the border of top-k and of top-p."""
    logits = (torch.arange(600, dtype=torch.float32) * 2.0**-23 + 1.0).repeat(3, 1).to(device)
    for top_k, top_p in ((50, 1.0), (600, 0.4), (99, 0.5)):
        settings = {"temperature": [3.0, 1.7, 1e3], "top_k": [top_k] * 3, "top_p": [top_p] * 3}
        check_same(device, logits, **(PLAIN | settings))


def test_few_candidates_are_searched_instead_of_the_row(device):
    """A search takes as many rounds as there are blocks: one of candidates, ten of the row."""
    if not IS_INTERPRETED:
        pytest.skip("a kernel's calls cannot be counted")
    logits = torch.randn(3, 600) * 3
    logits[:, ::50] += 12.0
    settings = PLAIN | {"top_k": [600, 20, 20], "top_p": [0.9, 1.0, 0.9]}

    def num_calls(max_candidates):
        tuning = replace(SMALL_BLOCKS, choice_block=64, candidate_block=128, max_candidates=max_candidates)
        profile = cProfile.Profile()
        profile.runcall(check_same, device, logits, tuning, **settings)
        return pstats.Stats(profile).total_calls

    assert num_calls(max_candidates=128) < num_calls(max_candidates=8)  # where all have no room


@pytest.mark.axes(
    num_rows=[3, Void(0), 1],
    width=[700, 1, 7, 511, 512],
    dtype=DTYPES,
    kind=["numbers", "ties", "holes"],
    layout=LAYOUTS,
    best=[None, float("nan"), float("-inf"), float("inf")],
)
def test_the_greatest_number_of_each_row_and_its_first_place(case, device):
    """Or rows of minus infinity alone, and rows where two numbers are the best or none."""
    rows = random_logits(case["num_rows"], case["width"], case["kind"], case["dtype"])
    if case["best"] is not None:
        rows[:, slice(None) if case["best"] < 0 else [-1, case["width"] // 2]] = case["best"]
    got, expected = argmax(laid_out(rows, case["layout"], device), block=512), reference.argmax(rows)
    torch.testing.assert_close(got.values.to(CPU), expected.values, atol=0, rtol=0, equal_nan=True)
    assert got.indices.tolist() == expected.indices.tolist()


@pytest.mark.axes(
    num_rows=[300, Void(0), 1, 128],
    seed_bits=[31, 32, 63],
    sign=[1, -1],
    position_bits=[10, 40],
    choice_bits=[7, 33],
    strided=[False, True],
)
def test_the_numbers_that_rows_are_drawn_by_are_those_of_the_reference(case, device):
    step = 2 if case["strided"] else 1
    seeds, positions, choices = (
        torch.randint(0, 2 ** case[f"{name}_bits"] - 1, (case["num_rows"] * step,))[::step]
        for name in ("seed", "position", "choice")
    )
    seeds *= case["sign"]
    got = philox.uniform(*(each.to(device) for each in (seeds, positions, choices)))
    assert torch.equal(got.to(CPU), reference.uniform(seeds, positions, choices))


@pytest.mark.axes(num_rows=[5, 1], num_lines=[3, Void(0), 1], width=[300, 1, 32, 1024], spare_words=[0, 2])
def test_masks_forbid_what_the_reference_forbids(case, device):
    rows = torch.randn(case["num_rows"], case["width"])
    lines = torch.randperm(case["num_rows"])[: case["num_lines"]]
    num_words = -(-case["width"] // 32) + case["spare_words"]
    masks = torch.randint(-(2**31), 2**31, (len(lines), num_words)).to(torch.int32)
    got = rows.to(device, copy=True)
    mask_rows_(got, lines.to(device), masks.to(device), block=128)
    reference.mask_rows_(rows, lines, masks)
    torch.testing.assert_close(got.to(CPU), rows, atol=0, rtol=0)


@pytest.mark.axes(
    dtype=DTYPES,
    width=[300, 31, 1100],
    truncation=["none", "top_k", "top_p"],
    lines=[(4, 0, 1), Void(()), (2,), (5, 4, 3, 2, 1, 0)],
    layout=LAYOUTS,
)
def test_masked_rows_get_the_tokens_of_the_reference(case, device):
    rows, width = 6, case["width"]
    logits = random_logits(rows, width, "plain", case["dtype"])
    top_k = torch.full((rows,), 7 if case["truncation"] == "top_k" else width)
    top_p = torch.full((rows,), 0.7 if case["truncation"] == "top_p" else 1.0, dtype=torch.float64)
    uniform = torch.rand(rows, dtype=torch.float64)
    settings = [torch.full((rows,), 0.8), top_k, top_p, torch.zeros(rows), uniform, torch.arange(rows) % 3 == 2]
    bits = torch.randint(-(2**31), 2**31, (len(case["lines"]), -(-width // 32))).to(torch.int32)
    bits[1:2] = 0
    masks = RowMasks(torch.tensor(case["lines"], dtype=torch.int64), bits)
    expected = reference.sample_rows(logits, *settings, masks)
    rows_on_device = laid_out(logits, case["layout"], device)
    on_device = RowMasks(masks.lines.to(device), masks.bits.to(device))
    settings = [each.to(device) for each in settings]
    got = sampling.sample_rows(rows_on_device, *settings, on_device, tuning=SMALL_BLOCKS)
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    assert got.is_invalid.tolist() == expected.is_invalid.tolist()
    assert got.is_invalid.sum() == (len(case["lines"]) > 1)
    assert torch.equal(rows_on_device.to(CPU), logits)


def test_masks_of_other_shapes_are_refused(device):
    logits, ones = torch.zeros(2, 40, device=device), torch.ones(2, device=device)
    masks = RowMasks(torch.tensor([0], device=device), torch.zeros(1, 1, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match="need as many masks"):
        GpuKernels().sample_rows(logits, ones, ones.int(), ones, ones, ones / 2, ones > 0, masks)
