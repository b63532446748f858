"""Environment, image and machines of pods, and the pod that submits a job."""

from typing import Any

import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.kubernetes.kustomize_files import merged
from rayinfer_deployments.kubernetes.manifests import manifests
from rayinfer_deployments.kubernetes.pod_parts import container_security
from rayinfer_deployments.kubernetes.service_file import service_of
from support.kubernetes.refused_services import SMALL

FILES = {"input": "/data/a", "output": "/data/b"}
MACHINES = {
    "node_selector": {"pool": "a"},
    "tolerations": [{"key": "spot", "value": "true", "effect": "NoExecute", "seconds": 60}, {"operator": "Exists"}],
    "priority_class": "high",
    "runtime_class": "nvidia",
}
ON_MACHINES = {
    "nodeSelector": {"pool": "a"},
    "tolerations": [
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
}


def pods_of(changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a service's or a job's cluster, and of the job's submitter."""
    spec = manifests(service_of(merged(SMALL, changes)))[-1]["spec"]
    cluster = spec.get("rayClusterConfig") or spec["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster["workerGroupSpecs"])]
    return [template["spec"] for template in [*templates, *filter(None, [spec.get("submitterPodTemplate")])]]


def test_pods_go_to_the_machines_of_their_settings() -> None:
    head, worker, submitter = pods_of({"head": MACHINES, "workers": [{"name": "a", **MACHINES}], "batch": FILES})
    for pod in (head, worker, submitter):
        assert {name: pod[name] for name in ON_MACHINES} == ON_MACHINES
    (_, gpu_worker) = pods_of({"workers": [{"name": "a", "gpus": 1, **MACHINES}]})
    assert [each.get("key") for each in gpu_worker["tolerations"]] == ["nvidia.com/gpu", "spot", None]


def test_containers_with_the_image_have_the_environment_of_the_service() -> None:
    storage = {"kind": "init", "init_command": ["hf", "download", "a/b"]}
    _, worker = pods_of({"env": {"NCCL_DEBUG": "INFO"}, "env_secrets": ["hub"], "storage": storage})
    for container in (*worker["containers"], *worker["initContainers"]):
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]
        assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]


@pytest.mark.parametrize("variable", ["HOME", "RAY_AUTH_MODE", "RAYINFER_API_KEYS", "RAY_SERVE_LOG_TO_STDERR"])
def test_what_the_manifests_set_is_not_set_twice(variable: str) -> None:
    with pytest.raises(ConfigError, match=f"env.{variable}: the manifests or KubeRay set it themselves"):
        service_of(merged(SMALL, {"env": {variable: "x"}}))


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({}, "rayinfer:cpu"),
        ({"workers": [{"name": "a"}, {"name": "b", "gpus": 1}]}, "rayinfer:cuda"),
        ({"workers": [{"name": "a", "gpus": 1}], "image": "mine:1"}, "mine:1"),
    ],
)
def test_machines_settle_the_image_unless_the_file_does(changes: dict[str, Any], image: str) -> None:
    assert {pod["containers"][0]["image"] for pod in pods_of(changes)} == {image}


def test_the_pod_that_submits_a_job_has_the_rights_of_others() -> None:
    *others, submitter = pods_of({"batch": FILES, "image_pull_secrets": ["registry"]})
    for name in ("securityContext", "imagePullSecrets", "enableServiceLinks"):
        assert [pod[name] for pod in others] == [submitter[name]] * 2
    assert submitter["containers"][0]["securityContext"] == container_security()
    assert submitter["containers"][0]["image"] == others[0]["containers"][0]["image"]
    assert (submitter["automountServiceAccountToken"], submitter["restartPolicy"]) == (False, "Never")
