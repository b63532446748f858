"""Time estimates of the workloads on the GPU that the goals are for."""

import pytest

from rayinfer.benchmark.gpu.cases import WORKS
from rayinfer.benchmark.gpu.estimates import CHECKS, OPEN_S, estimates, floor_of
from rayinfer.benchmark.gpu.roofline import CardLimits
from rayinfer.benchmark.gpu.scales import FULL, QUICK, TINY

LIMITS = CardLimits(copy_bytes_per_s=4.3e12, matmul_flops_per_s=790e12)


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_estimates_lie_far_above_the_floors_and_the_goals_have_room(scale):
    works = [work for work in WORKS if work.is_quick or scale is FULL]
    found = estimates(works, scale, LIMITS, 2)
    assert list(found) == [CHECKS, *(work.name for work in works)]
    floor = floor_of(works[0], scale, LIMITS)
    assert found["B1"].run_s > 2 * 3.70  # seconds, by hand
    assert found["B3"].run_s > 256 * 1.2e-3  # the goal's tokens
    assert floor.size.num_layers == 28
    # A single run of everything fits where works take two thirds of what is expected at worst.
    assert 0.5 * sum(estimate.least_s for estimate in found.values()) < scale.limit_s


def test_the_first_work_with_a_model_compiles_for_the_others():
    found = estimates(WORKS, FULL, LIMITS, 2)
    assert found["B1"].open_s > found["B3"].open_s > OPEN_S
    assert found["B4"].open_s > found["B7"].open_s


def test_tiny_shapes_take_no_time_to_run():
    found = estimates(WORKS, TINY, LIMITS, 2)
    assert all(found[name].run_s < 0.1 for name in ("B1", "B3", "B7"))
