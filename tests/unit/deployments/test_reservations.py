"""Reservations of engines, by what the cluster has."""

import pytest

from rayinfer_deployments.app_args import REPLICA_NUM_CPUS, llm_app_args
from rayinfer_deployments.reservations import with_cpus_that_fit, with_gpus_for_ranks


def test_gpus_that_a_cluster_has_go_to_ranks_of_which_each_can_have_one():
    models = [
        {"model": "a", "tensor_parallel_size": 2, "num_replicas": 2},
        {"model": "b", "pipeline_parallel_size": 2},
        {"model": "c"},
        {"model": "d", "tensor_parallel_size": 2, "num_gpus": 0},
    ]
    args = llm_app_args({"models": models})
    assert [model.num_gpus for model in with_gpus_for_ranks(args, 8).models] == [1, 1, 0, 0]
    assert [model.num_gpus for model in with_gpus_for_ranks(args, 5).models] == [1, 0, 0, 0]
    assert with_gpus_for_ranks(args, 1) == args


def reserved(args):
    engines = [
        model.num_replicas * (model.num_ranks * model.num_cpus_per_rank + REPLICA_NUM_CPUS) for model in args.models
    ]
    return sum(engines) + args.num_routers * args.router_num_cpus


@pytest.mark.parametrize("models", [[{"model": f"m{k}"} for k in range(12)], [{"model": "a", "num_replicas": 5}]])
def test_all_engines_and_one_that_replaces_another_fit_on_few_cores(models):
    args = llm_app_args({"models": models})
    assert reserved(args) > 2
    fitting = with_cpus_that_fit(args, 2)
    of_one_more = REPLICA_NUM_CPUS + fitting.models[0].num_cpus_per_rank
    assert 1.9 < reserved(fitting) + of_one_more <= 2


def test_what_fits_and_what_is_set_are_left_as_they_are():
    args = llm_app_args({"models": [{"model": "a"}, {"model": "b", "num_cpus": 1.5}]})
    assert with_cpus_that_fit(args, 4) == args
    assert [model.num_cpus for model in with_cpus_that_fit(args, 2).models] == [0.125, 1.5]
    assert [model.num_cpus for model in with_cpus_that_fit(args, 1).models] == [0, 1.5]
