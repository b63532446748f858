"""The same request draws the same tokens, whoever is beside it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rayinfer.decoding.sampler import Sampler
from rayinfer.sampling_params import SamplingParams
from rayinfer_kernels.reference.philox import uniform
from support.kernels.sampler_requests import MIXED, MIXED_NAMES, VOCAB, draw_alone, enter, logits_of, sample


def generate(sampler, row, num_steps, *, start, neighbors=()):
    """Drive `row` through steps whose logits depend on the position, in a batch or alone."""
    tokens = []
    for position in range(start, start + num_steps):
        rows = [*neighbors[: position % 3], row, *neighbors[position % 3 :]]
        logits = torch.cat([logits_of(position if r == row else 1000 * r + position) for r in rows])
        tokens.append(sample(sampler, logits, rows, [position] * len(rows))[rows.index(row)])
    return tokens


@pytest.mark.parametrize("params", MIXED, ids=MIXED_NAMES)
def test_a_draw_depends_on_neither_batch_nor_row_nor_preemption(params):
    alone = Sampler(1, VOCAB)
    enter(alone, 0, params, seed=77)
    expected = generate(alone, 0, 9, start=3)

    busy = Sampler(len(MIXED) + 2, VOCAB)
    neighbors = [row for row in range(len(MIXED) + 1) if row != 6]
    for row, other in zip(neighbors, MIXED, strict=True):
        enter(busy, row, other, seed=row)
    enter(busy, 6, params, seed=77)
    first = generate(busy, 6, 4, start=3, neighbors=neighbors)
    busy.remove_row(6)
    last = len(MIXED) + 1
    enter(busy, last, params, seed=77, outputs=first)
    rest = generate(busy, last, 5, start=7, neighbors=neighbors)
    assert first + rest == expected


def test_a_mixed_batch_equals_its_rows_one_by_one():
    sampler = Sampler(len(MIXED), VOCAB)
    logits = logits_of(9, num_rows=len(MIXED))
    outputs = [20, 21, 20]
    for row, params in enumerate(MIXED):
        enter(sampler, row, params, seed=row, outputs=outputs)
    together = sample(sampler, logits, range(len(MIXED)), [6] * len(MIXED))
    one_by_one = [
        draw_alone(logits[row : row + 1], params, seed=row, outputs=outputs, position=6)
        for row, params in enumerate(MIXED)
    ]
    assert together == one_by_one


def test_the_number_of_threads_changes_nothing():
    threads = torch.get_num_threads()
    logits = torch.randn(40, 30_000, generator=torch.Generator().manual_seed(3))
    drawn = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            sampler = Sampler(40, 30_000)
            for row in range(40):
                enter(sampler, row, MIXED[row % len(MIXED)], seed=row)
            drawn.append(sample(sampler, logits, range(40), [3] * 40))
    finally:
        torch.set_num_threads(threads)
    assert drawn[0] == drawn[1]


def test_seed_choice_and_position_each_change_the_draw():
    logits = torch.zeros(1, VOCAB)
    base = draw_alone(logits, SamplingParams())
    assert base == draw_alone(logits, SamplingParams())
    assert (
        len({base, draw_alone(logits, SamplingParams(), choice=1), draw_alone(logits, SamplingParams(), seed=2)}) == 3
    )
    assert base != draw_alone(logits, SamplingParams(), position=4)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 2**63, -5])
def test_the_widest_seeds_work(seed):
    logits = torch.zeros(1, VOCAB)
    share = uniform(torch.tensor([(seed + 2**63) % 2**64 - 2**63]), torch.tensor([3]), torch.tensor([0])).item()
    assert draw_alone(logits, SamplingParams(), seed=seed) == int(share * VOCAB)


def test_log_probabilities_do_not_depend_on_the_batch():
    sampler = Sampler(len(MIXED), VOCAB)
    asking = [replace(params, logprobs=row % 3) for row, params in enumerate(MIXED)]
    logits = logits_of(8, num_rows=len(MIXED))
    for row, params in enumerate(asking):
        enter(sampler, row, params, seed=row)
    together = sampler.sample(logits, np.arange(len(MIXED)), np.full(len(MIXED), 3))
    for row, params in enumerate(asking):
        alone = Sampler(1, VOCAB)
        enter(alone, 0, params, seed=row)
        scored = alone.sample(logits[row : row + 1], np.array([0]), np.array([3])).logprobs
        width = 1 + params.logprobs
        assert torch.equal(scored.token_ids[0], together.logprobs.token_ids[row, :width])
        assert torch.equal(scored.logprobs[0], together.logprobs.logprobs[row, :width])
        assert scored.ranks[0] == together.logprobs.ranks[row]
