import pytest

from rayinfer_deployments.app_args import ModelArgs, llm_app_args
from rayinfer_deployments.operations.replica_counts import is_allowed_count, num_wanted, scaled, with_initial_replicas

FIXED = ModelArgs(model="m", num_replicas=2)
BOUNDS = {"min_replicas": 0, "max_replicas": 4}
FREE = ModelArgs(model="m", autoscaling=BOUNDS)


def bounds_of(model):
    return (model.autoscaling.min_replicas, model.autoscaling.initial_replicas, model.autoscaling.max_replicas)


def test_a_fixed_number_is_replaced_and_bounds_close_around_one():
    assert scaled(FIXED, FIXED, 5, 2).num_replicas == 5
    assert bounds_of(scaled(FREE, FREE, 3, 1)) == (3, 3, 3)
    assert bounds_of(scaled(FREE, FREE, 9, 1)) == (9, 9, 9)  # the operator's word counts more than the file's


def test_the_way_back_begins_with_the_engines_that_there_are():
    assert scaled(scaled(FIXED, FIXED, 5, 2), FIXED, None, 5) == FIXED
    assert bounds_of(scaled(scaled(FREE, FREE, 3, 1), FREE, None, 3)) == (0, 3, 4)
    assert bounds_of(scaled(scaled(FREE, FREE, 9, 1), FREE, None, 9)) == (0, 4, 4)


def test_a_change_keeps_the_engines_that_there_are():
    assert bounds_of(with_initial_replicas(FREE, 3)) == (0, 3, 4)
    assert bounds_of(with_initial_replicas(FREE, 0)) == (0, 1, 4)
    assert with_initial_replicas(FIXED, 7) == FIXED


def test_a_number_is_right_if_it_is_the_one_or_between_the_bounds():
    assert [is_allowed_count(FIXED, number) for number in (1, 2, 3)] == [False, True, False]
    assert [is_allowed_count(FREE, number) for number in (0, 4, 5)] == [True, True, False]


@pytest.mark.parametrize(
    ("settings", "wanted"), [({"num_routers": 3}, 3), ({"router_on_every_node": True}, "one a node")]
)
def test_routers_are_a_number_or_one_a_node(settings, wanted):
    args = llm_app_args({"models": [{"model": "m", "autoscaling": BOUNDS}]} | settings)
    assert num_wanted(args, "router") == wanted
    assert num_wanted(args, "engine-0-m") == "0 to 4"
    assert num_wanted(args, "other") is None
