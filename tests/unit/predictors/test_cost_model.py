"""Fit of step times, and the budget derived from it."""

import random

import pytest

from rayinfer.predictors.cost_model import CostModel


def costs_of(steps, **settings):
    costs = CostModel(**{"target_step_s": 0.05, "max_cost": 4096} | settings)
    for cost, seconds in steps:
        costs.record(cost, seconds)
    return costs


def test_base_and_slope_are_found_in_noisy_times():
    draw = random.Random(0)
    sizes = [draw.randint(1, 2000) for _ in range(64)]
    costs = costs_of([(size, (0.02 + 1e-4 * size) * draw.uniform(0.95, 1.05)) for size in sizes])
    assert costs.base_s == pytest.approx(0.02, rel=0.1)
    assert costs.per_unit_s == pytest.approx(1e-4, rel=0.1)


def test_the_budget_is_the_largest_cost_within_the_target():
    costs = costs_of([(10, 0.021), (100, 0.03), (500, 0.07)])
    assert costs.budget == pytest.approx(300, abs=1)
    assert costs.seconds(300) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("steps", "budget"), [([], 4096), ([(1, 1e-6), (4000, 2e-6)], 4096), ([(1, 9.0), (2, 18.0)], 1)]
)
def test_the_budget_stays_between_one_and_its_maximum(steps, budget):
    assert costs_of(steps).budget == budget


def test_steps_of_one_size_alone_count_as_proportional():
    costs = costs_of([(32, 0.064)] * 10)
    assert (costs.base_s, costs.per_unit_s) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.002))


def test_probes_separate_base_and_slope_where_all_steps_have_one_size():
    costs = costs_of([])
    costs.record_probe(1, 0.021)
    costs.record_probe(1000, 0.12)
    for _ in range(64):
        costs.record(32, 0.0232)
    assert costs.base_s == pytest.approx(0.02, rel=0.05)
    assert costs.per_unit_s == pytest.approx(1e-4, rel=0.05)


def test_base_and_slope_are_never_negative():
    draw = random.Random(1)
    for _ in range(300):
        costs = costs_of([(draw.randint(1, 50), draw.uniform(0, 1)) for _ in range(draw.randint(2, 6))])
        assert costs.base_s >= 0
        assert costs.per_unit_s >= 0


def test_steps_that_lost_their_core_change_little():
    steps = [(size, 0.01 + 1e-4 * size) for size in range(10, 640, 10)]
    quiet, disturbed = costs_of(steps), costs_of([*steps, (300, 2.0)])
    assert disturbed.seconds(300) == pytest.approx(quiet.seconds(300), rel=0.1)
