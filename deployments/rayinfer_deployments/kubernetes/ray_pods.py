"""Pods of Ray's head and of its workers: containers, probes, volumes and their limits."""

import json

from rayinfer_deployments.applications import CLEAN_UP_S
from rayinfer_deployments.kubernetes.pod_parts import (
    HOME,
    HOME_VARIABLES,
    amounts,
    choice_of_machines,
    common_mounts,
    common_volumes,
    container_security,
    model_loader,
    model_mounts,
    model_volumes,
    own_environment,
    pod_labels,
    pod_of,
    secret_environment,
    set_environment,
)
from rayinfer_deployments.kubernetes.pod_settings import LEAST_SHARED_MEMORY, WorkerGroup
from rayinfer_deployments.kubernetes.queue_limits import SUBMITTER_MEMORY, SUBMITTER_MILLI_CPUS
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT
from rayinfer_deployments.kubernetes.service_file import ServiceFile, engine_place
from rayinfer_deployments.kubernetes.setting_types import Manifest

# The store of Ray's objects, in bytes: Ray's default, 30 % of the pod, would not fit /dev/shm and lie on the disk.
START_PARAMETERS = {"metrics-export-port": "8080", "object-store-memory": "400000000"}
PRE_STOP_S = 15  # until gateways and Services have dropped the pod
RAYLET_HEALTH = "wget -T 4 -q -O- http://127.0.0.1:52365/api/local_raylet_healthz | grep -q success"
GCS_HEALTH = "wget -T 4 -q -O- http://127.0.0.1:8265/api/gcs_healthz | grep -q success"
SERVE_HEALTH = f"wget -T 4 -q -O- http://127.0.0.1:{HTTP_PORT}/-/healthz | grep -q success"


def grace_period_s(service: ServiceFile) -> int:
    """Return the time that a pod gets to end: longer than the longest drain of its engines and routers."""
    return service.longest_drain_s + int(CLEAN_UP_S) + PRE_STOP_S + 30


def head_group(service: ServiceFile, *, is_serving: bool = True) -> Manifest:
    """Build the head's group; `num-cpus: 0` keeps replicas away from it, and an offline job's driver runs there."""
    needs_models = not is_serving
    container = _container(service, "ray-head") | {
        "ports": [
            _port("gcs-server", 6379),
            _port("dashboard", 8265),
            _port("client", 10001),
            _port("metrics", 8080),
        ],
        "resources": amounts(service.head.cpus, service.head.memory),
        "livenessProbe": _probe(f"{RAYLET_HEALTH} && {GCS_HEALTH}", period_s=5, failures=120),
        "readinessProbe": _probe(f"{RAYLET_HEALTH} && {GCS_HEALTH}", period_s=5, failures=10),
        "volumeMounts": [*common_mounts(), *(model_mounts(service) if needs_models else [])],
    }
    pod = pod_of(service, container) | {
        "automountServiceAccountToken": service.autoscale_pods,
        "terminationGracePeriodSeconds": 60,
        "volumes": [
            *common_volumes(service, shared_memory=LEAST_SHARED_MEMORY),
            *(model_volumes(service) if needs_models else []),
        ],
    }
    if is_serving and service.batches_folder and service.batches_claim:
        pod["volumes"].append({"name": "batches", "persistentVolumeClaim": {"claimName": service.batches_claim}})
        mount = {"name": "batches", "mountPath": service.batches_folder}
        container["volumeMounts"].append(mount if service.storage.batches_claim else mount | {"subPath": "batches"})
    if needs_models and service.storage.kind == "init":
        pod["initContainers"] = [model_loader(service)]
    pod |= choice_of_machines(service.head)
    return {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **START_PARAMETERS},
        "template": {"metadata": {"labels": pod_labels(service, "head")}, "spec": pod},
    }


def worker_group(service: ServiceFile, group: WorkerGroup, *, is_serving: bool = True) -> Manifest:
    """Build one group of workers; those of a service are ready when their Serve proxy is."""
    ready = f"{RAYLET_HEALTH} && {SERVE_HEALTH}" if is_serving else RAYLET_HEALTH
    ports = [_port("http", HTTP_PORT), _port("grpc", GRPC_PORT)] if service.grpc else [_port("http", HTTP_PORT)]
    container = _container(service, "ray-worker") | {
        "ports": [*(ports if is_serving else []), _port("metrics", 8080)],
        "resources": amounts(group.cpus, group.memory, group.gpus),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _drain_command(service)]}}},
        "livenessProbe": _probe(RAYLET_HEALTH, period_s=5, failures=120),
        "readinessProbe": _probe(ready, period_s=2, failures=2),
        "volumeMounts": [*common_mounts(), *model_mounts(service)],
    }
    labels = pod_labels(service, "worker")
    spread = {
        "maxSkew": 1,
        "topologyKey": group.spread_over,
        "whenUnsatisfiable": "DoNotSchedule" if group.spread_strictly else "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod = pod_of(service, container) | {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_period_s(service),
        "topologySpreadConstraints": [spread],
        "volumes": [*common_volumes(service, group.shared_memory), *model_volumes(service)],
    }
    pod |= choice_of_machines(group, group.gpus)
    if service.storage.kind == "init":
        pod["initContainers"] = [model_loader(service)]
    return {
        "groupName": group.name,
        "replicas": group.pods,
        "minReplicas": group.fewest,
        "maxReplicas": group.most,
        "rayStartParams": START_PARAMETERS | _engine_places(service),
        "template": {"metadata": {"labels": labels | _picker_labels(service)}, "spec": pod},
    }


def submitter(service: ServiceFile) -> Manifest:
    """Build the pod of the Kubernetes Job by which KubeRay submits a job: KubeRay fills in its command and token."""
    container = {
        "name": "ray-job-submitter",
        "image": service.image_name,
        "env": HOME_VARIABLES,
        "resources": {
            "requests": {"cpu": f"{SUBMITTER_MILLI_CPUS}m", "memory": SUBMITTER_MEMORY},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": HOME}],
    }
    pod = pod_of(service, container) | {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "home", "emptyDir": {}}],
    }
    pod |= choice_of_machines(service.head)
    return {"metadata": {"labels": pod_labels(service, "submitter")}, "spec": pod}


def _drain_command(service: ServiceFile) -> str:
    """Have Serve move the pod's replicas elsewhere, and wait until they have ended their requests."""
    drain_s = service.longest_drain_s + int(CLEAN_UP_S)
    drain = "ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod ends'"
    # The brackets keep the pattern from matching this command's own line.
    has_replicas = "grep -qsa 'ray::[S]erveReplica' /proc/[0-9]*/cmdline"
    return (
        f"{drain} --deadline-remaining-seconds {drain_s}; sleep {PRE_STOP_S};"
        f" for second in $(seq {drain_s}); do {has_replicas} || break; sleep 1; done"
    )


def _container(service: ServiceFile, name: str) -> Manifest:
    return {
        "name": name,
        "image": service.image_name,
        "env": [*set_environment()[service.profile], *own_environment(service)],
        "securityContext": container_security(),
        **secret_environment(service),
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number}


def _probe(command: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "exec": {"command": ["sh", "-c", command]},
        "initialDelaySeconds": 10,
        "periodSeconds": period_s,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def _picker_labels(service: ServiceFile) -> dict[str, str]:
    """Say to an endpoint picker under which names it finds the metrics: vLLM's."""
    if service.ingress is None or not service.ingress.inference_pool:
        return {}
    return {"inference.networking.k8s.io/engine-type": "vllm"}


def _engine_places(service: ServiceFile) -> dict[str, str]:
    """Return the parameter that gives a pod a place for an engine of each model, quoted for a shell as Ray reads it."""
    if not service.engines_apart:
        return {}
    places = json.dumps({engine_place(index): 1 for index in range(len(service.app["models"]))})
    return {"resources": '"' + places.replace('"', '\\"') + '"'}
