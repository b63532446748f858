import json
import subprocess
import sys

import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app

BUILD = """
import json, sys
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app
build_llm_app(llm_app_args(json.loads(sys.argv[1])))
print("torch" in sys.modules)
"""


def test_the_graph_is_built_without_torch_and_without_the_models_files():
    settings = {"models": [{"model": "/nowhere/a", "num_gpus": 1}, {"model": "organization/b", "num_replicas": 3}]}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, json.dumps(settings)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def versions(**changes):
    model = {"model": "/nowhere/a", "name": "a"} | changes.pop("model", {})
    application = build_llm_app(llm_app_args({"models": [model, {"model": "/nowhere/b"}]} | changes))
    router = application._bound_deployment
    engines = [model.engines._bound_deployment for model in router.init_args[0]]
    return [deployment.version for deployment in (router, *engines)]


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"max_waiting_requests": 7}},
        {"num_routers": 3},
        {"model": {"num_replicas": 4}},
        {"model": {"surge_percent": 0}},
    ],
)
def test_a_change_for_which_nothing_has_to_be_built_anew_keeps_every_version(change):
    assert versions(**change) == versions()


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"max_body_bytes": 4096}, [True, False, False]),
        ({"model": {"max_num_seqs": 3}}, [False, True, False]),
        ({"model": {"revision": "2"}}, [False, True, False]),
        ({"model": {"model": "/nowhere/c"}}, [True, True, False]),
    ],
)
def test_a_change_gives_those_another_version_that_are_made_from_it(change, changed):
    pairs = zip(versions(**change), versions(), strict=True)
    assert [new != old for new, old in pairs] == changed


def test_where_engines_follow_the_load_routers_are_made_from_its_objective_and_not_from_its_bounds():
    def scaled(**settings):
        return versions(model={"autoscaling": {"max_replicas": 2} | settings})

    assert scaled(max_replicas=4, min_replicas=0, target_usage=0.5, downscale_delay_s=1) == scaled()
    changed = [new != old for new, old in zip(scaled(ttft_objective_s=9), scaled(), strict=True)]
    assert changed == [True, False, False]
    assert scaled()[1:] == versions()[1:]


def test_serve_gets_bounds_instead_of_a_number():
    model = {"model": "/nowhere/a", "autoscaling": {"min_replicas": 0, "max_replicas": 5}}
    router = build_llm_app(llm_app_args({"models": [model, {"model": "/nowhere/b", "num_replicas": 2}]}))
    scaled, fixed = (model.engines._bound_deployment for model in router._bound_deployment.init_args[0])
    reported = scaled._deployment_config.autoscaling_config
    assert (reported.min_replicas, reported.initial_replicas, reported.max_replicas) == (0, 1, 5)
    assert reported.policy.policy_kwargs["max_replicas"] == 5
    assert fixed._deployment_config.autoscaling_config is None
    assert fixed.num_replicas == 2
    assert scaled.init_kwargs["num_processes"] == 7  # cores are shared as if all were there


def test_two_models_of_the_same_settings_have_engines_of_their_own():
    assert len(set(versions())) == 3


@pytest.mark.parametrize(
    ("settings", "bundles"),
    [
        ({"num_cpus": 0.5}, [{"CPU": 0.55}]),
        ({"num_cpus": 0.5, "num_gpus": 0.5}, [{"CPU": 0.55, "GPU": 0.5}]),
        ({"num_cpus": 1, "tensor_parallel_size": 2}, [{"CPU": 1.05}, {"CPU": 1}]),
        ({"num_cpus": 1, "num_gpus": 1, "pipeline_parallel_size": 2}, [{"CPU": 1.05, "GPU": 1}, {"CPU": 1, "GPU": 1}]),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, [{"CPU": 0.175}] + [{"CPU": 0.125}] * 3),
        ({"num_cpus": 0, "tensor_parallel_size": 2}, [{"CPU": 0.05}, {"CPU": 0.001}]),
        ({"tensor_parallel_size": 2, "resources": {"place": 1}}, [{"CPU": 0.3, "place": 1}, {"CPU": 0.25}]),
    ],
)
def test_every_rank_has_a_bundle_of_its_own_on_one_node_and_the_replica_is_in_the_first(settings, bundles):
    application = build_llm_app(llm_app_args({"models": [{"model": "/nowhere/a"} | settings]}))
    engines = application._bound_deployment.init_args[0][0].engines._bound_deployment
    assert engines._replica_config.placement_group_bundles == [pytest.approx(bundle) for bundle in bundles]
    assert engines._replica_config.placement_group_strategy == "STRICT_PACK"
    assert engines.init_kwargs["resources"].num_ranks == len(bundles)


@pytest.mark.parametrize(
    ("settings", "bundles", "labels"),
    [
        ({"tensor_parallel_size": 2}, [{"CPU": 1.05}, {"CPU": 1}], None),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "num_gpus": 1}, [{"CPU": 2.05}, {"CPU": 2}], None),
        (
            {"pipeline_parallel_size": 2, "node_labels": [{"zone": "a"}]},
            [{"CPU": 1.05}, {"CPU": 1}],
            [{"zone": "a"}] * 2,
        ),
        (
            {"tensor_parallel_size": 2, "node_labels": [{"rack": "1"}, {"rack": "2"}]},
            [{"CPU": 1.05}, {"CPU": 1}],
            [{"rack": "1"}, {"rack": "2"}],
        ),
    ],
)
def test_spread_engines_have_a_bundle_for_each_stage_or_rank(settings, bundles, labels):
    model = {"model": "/nowhere/a", "num_cpus": 1, "placement_group_strategy": "SPREAD"} | settings
    application = build_llm_app(llm_app_args({"models": [model]}))
    engines = application._bound_deployment.init_args[0][0].engines._bound_deployment
    gpus = {"GPU": 2} if settings.get("num_gpus") else {}
    assert engines._replica_config.placement_group_bundles == [pytest.approx(bundle | gpus) for bundle in bundles]
    assert engines._replica_config.placement_group_strategy == "SPREAD"
    assert engines._replica_config.placement_group_bundle_label_selector == labels


def test_spans_without_the_packages_that_export_them_are_refused(monkeypatch):
    args = llm_app_args({"models": [{"model": "/nowhere/a"}], "otlp_traces_endpoint": "http://127.0.0.1:4318"})
    router = build_llm_app(args)._bound_deployment
    assert router.init_kwargs["otlp_traces_endpoint"] == "http://127.0.0.1:4318/v1/traces"
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint needs .*: install rayinfer\[otel\]"):
        build_llm_app(args)
