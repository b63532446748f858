"""KServe's runtime: a pod that runs `rayinfer serve` and speaks the v2 protocol."""

from rayinfer_deployments.kubernetes.cluster_settings import KserveSettings
from rayinfer_deployments.kubernetes.engine_options import engine_options
from rayinfer_deployments.kubernetes.pod_parts import (
    HOME,
    HOME_VARIABLES,
    choice_of_machines,
    lone_container_security,
    own_environment,
    pull_secrets,
    secret_environment,
)
from rayinfer_deployments.kubernetes.pod_settings import WorkerGroup
from rayinfer_deployments.kubernetes.ray_objects import metadata
from rayinfer_deployments.kubernetes.ray_pods import grace_period_s
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

KSERVE_MODEL = "/mnt/models"


def kserve(service: ServiceFile, settings: KserveSettings) -> list[Manifest]:
    """Build a runtime that serves one model by `rayinfer serve`, and an InferenceService of it."""
    group = service.workers[0]
    model = service.app_args().models[0]
    name = model.name or (service.name if settings.storage_uri else model.served_name)
    arguments = ["rayinfer", "serve", KSERVE_MODEL if settings.storage_uri else model.model, "--name", name]
    chosen = choice_of_machines(group, group.gpus)  # a ServingRuntime takes a part of it, an InferenceService the rest
    container = _container(service, group) | {"args": arguments + _serve_options(service)}
    runtime = {
        "supportedModelFormats": [{"name": settings.model_format, "version": "1", "autoSelect": True}],
        "protocolVersions": ["v2"],
        "containers": [container],
        "volumes": [
            {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": group.shared_memory}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "home", "emptyDir": {"sizeLimit": service.storage.cache_size}},
        ],
        **_part(chosen, "nodeSelector", "tolerations"),
        **pull_secrets(service),
    }
    inference = {"modelFormat": {"name": settings.model_format, "version": "1"}, "runtime": service.name}
    predictor: Manifest = {
        "minReplicas": settings.min_replicas,
        "maxReplicas": settings.max_replicas,
        "terminationGracePeriodSeconds": grace_period_s(service),
        "model": inference | {"protocolVersion": "v2"},
        **_part(chosen, "priorityClassName", "runtimeClassName"),
    }
    if settings.storage_uri:
        predictor["model"]["storageUri"] = settings.storage_uri
    objects = [("v1alpha1", "ServingRuntime", runtime), ("v1beta1", "InferenceService", {"predictor": predictor})]
    return [
        {
            "apiVersion": f"serving.kserve.io/{version}",
            "kind": kind,
            "metadata": metadata(service, service.name),
            "spec": spec,
        }
        for version, kind, spec in objects
    ]


def _container(service: ServiceFile, group: WorkerGroup) -> Manifest:
    amounts = {"cpu": str(group.cpus), "memory": group.memory}
    if group.gpus:
        amounts["nvidia.com/gpu"] = str(group.gpus)
    return {
        "name": "kserve-container",
        "image": service.image_name,
        "env": [*HOME_VARIABLES, *own_environment(service)],
        **secret_environment(service),
        "ports": [{"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": HTTP_PORT}, "periodSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/v2/health/live", "port": HTTP_PORT},
            "periodSeconds": 10,
            "failureThreshold": 30,
        },
        "securityContext": lone_container_security(),
        "volumeMounts": [
            {"name": "shared-mem", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "home", "mountPath": HOME},
        ],
    }


def _part(chosen: Manifest, *names: str) -> Manifest:
    return {name: chosen[name] for name in names if name in chosen}


def _serve_options(service: ServiceFile) -> list[str]:
    model = service.app_args().models[0]
    options = ["--host", "0.0.0.0", "--port", str(HTTP_PORT), "--grpc-port", str(GRPC_PORT) if service.grpc else "0"]
    options += ["--replicas", str(model.num_replicas), "--shutdown-grace", str(service.longest_drain_s)]
    if (timeout_s := service.app_args().request_timeout_s) is not None:
        options += ["--request-timeout", f"{timeout_s:g}"]
    if model.tool_format is not None:
        options += ["--tool-format", model.tool_format]
    return options + engine_options(service.app["models"][0])
