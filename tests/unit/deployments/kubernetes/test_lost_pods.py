"""Losses with a pod: one engine of a model, one router, and no batches."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _get_custom_resources

from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app
from rayinfer_deployments.kubernetes.build_files import BUILT_IN_OVERLAYS, service_files
from rayinfer_deployments.kubernetes.kustomize_files import merged
from rayinfer_deployments.kubernetes.manifests import manifests
from rayinfer_deployments.kubernetes.service_file import service_of
from support.kubernetes.refused_services import SMALL


def rayservice(changes: dict[str, Any]) -> dict[str, Any]:
    return manifests(service_of(merged(SMALL, changes)))[-1]["spec"]


def test_high_availability_leaves_an_engine_and_a_router_when_a_pod_is_lost() -> None:
    ha = yaml.safe_load(BUILT_IN_OVERLAYS.read_text())["ha"]
    spec = rayservice(ha | {"app": {"models": [{"model": "a", "num_replicas": 2}, {"model": "b", "num_replicas": 2}]}})
    args = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    router = build_llm_app(llm_app_args(args | ha["app"] | {"models": args["models"]}))._bound_deployment
    engines = [model.engines._bound_deployment for model in router.init_args[0]]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    places = _get_custom_resources({}, group["rayStartParams"], "workers")
    for index, deployment in enumerate(engines):
        (bundle,) = deployment._replica_config.placement_group_bundles
        assert {name: bundle[name] for name in places if name in bundle} == {f"engine-{index}": 1}
        assert deployment._deployment_config.max_surge_percent == 0  # there is no third pod for an update
    assert places == {"engine-0": 1, "engine-1": 1}
    assert router._replica_config.max_replicas_per_node == 1
    (spread,) = group["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")


@pytest.mark.parametrize(
    ("storage", "claim", "mount"),
    [
        ({"batches_claim": "mine"}, "mine", {}),
        ({"kind": "pvc"}, "rayinfer-models", {"subPath": "batches"}),
        ({"kind": "pvc", "claim": "weights"}, "weights", {"subPath": "batches"}),
        ({"kind": "pvc", "batches_claim": "mine"}, "mine", {}),
    ],
)
def test_batches_lie_on_a_claim(storage: dict[str, str], claim: str, mount: dict[str, str]) -> None:
    app = {"models": [{"model": "a"}], "batches_folder": "/home/rayinfer/batches"}
    spec = rayservice({"app": app, "storage": storage})
    pod = spec["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    assert {"name": "batches", "persistentVolumeClaim": {"claimName": claim}} in pod["volumes"]
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "batches", "mountPath": "/home/rayinfer/batches"} | mount in mounts
    (worker,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert "batches" not in [volume["name"] for volume in worker["template"]["spec"]["volumes"]]


def test_batches_that_are_lost_with_the_head_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    app = {"models": [{"model": "a"}], "batches_folder": "/home/rayinfer/batches"}
    file.write_text(yaml.safe_dump(merged(SMALL, {"app": app})))
    (warning,) = service_files(file).warnings
    assert warning.startswith("app.batches_folder: /home/rayinfer/batches lies in the head's pod")
    file.write_text(yaml.safe_dump(merged(SMALL, {"app": app, "storage": {"batches_claim": "a"}})))
    assert service_files(file).warnings == []
