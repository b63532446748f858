"""Parts of pods: machines, environment, rights and volumes."""

from typing import Any

from rayinfer_deployments.cluster.ray_environment import Profile, cluster_settings
from rayinfer_deployments.kubernetes.pod_settings import PodSettings, Toleration
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

USER_ID = 10001  # of the image's user
HOME = "/home/rayinfer"
CACHE = f"{HOME}/.cache/rayinfer"
HOME_VARIABLES = [{"name": "HOME", "value": HOME}, {"name": "RAYINFER_CACHE", "value": CACHE}]
MODELS = "/models"


def pod_labels(service: ServiceFile, component: str) -> dict[str, str]:
    """Label the pods of a service's head or workers; selectors of other objects use the same."""
    return {
        "app.kubernetes.io/name": "rayinfer",
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": component,
    }


def pod_of(service: ServiceFile, container: Manifest) -> Manifest:
    """Build what all pods have."""
    pod: Manifest = {"containers": [container], "securityContext": pod_security(), "enableServiceLinks": False}
    return pod | pull_secrets(service)


def choice_of_machines(settings: PodSettings, gpus: int = 0) -> Manifest:
    """Return the part of a pod that says which nodes take it, and how."""
    chosen: Manifest = {}
    if settings.node_selector:
        chosen["nodeSelector"] = settings.node_selector
    tolerations = [_toleration(each) for each in settings.tolerations]
    if gpus:
        tolerations.insert(0, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    if tolerations:
        chosen["tolerations"] = tolerations
    if settings.priority_class:
        chosen["priorityClassName"] = settings.priority_class
    if settings.runtime_class:
        chosen["runtimeClassName"] = settings.runtime_class
    return chosen


def pull_secrets(service: ServiceFile) -> Manifest:
    """Return the part of a pod that names the credentials for its image."""
    names = service.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def set_environment() -> dict[str, list[Manifest]]:
    """List by profile what every Ray container has: what `rayinfer environment` prints, and the home folder."""
    environments = {}
    for profile in Profile:
        settings = cluster_settings(throughput=profile == Profile.THROUGHPUT)
        settings.pop("RAY_AUTH_MODE")  # KubeRay sets it with the token of spec.authOptions
        variables = [{"name": name, "value": value} for name, value in settings.items()]
        environments[profile.value] = [*variables, *HOME_VARIABLES]
    return environments


def own_environment(service: ServiceFile) -> list[Manifest]:
    """List the service's own environment, with its keys."""
    variables: list[Manifest] = [{"name": name, "value": service.env[name]} for name in sorted(service.env)]
    if service.auth is not None:
        key = {"name": service.auth.api_keys_secret, "key": "keys"}
        variables.append({"name": "RAYINFER_API_KEYS", "valueFrom": {"secretKeyRef": key}})
    return variables


def secret_environment(service: ServiceFile) -> Manifest:
    """Return the part of a container that takes its environment from Secrets."""
    names = service.env_secrets
    return {"envFrom": [{"secretRef": {"name": name}} for name in names]} if names else {}


def container_security() -> Manifest:
    """Return the restricted profile of Kubernetes' pod security, with a root file system that nothing can write."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def lone_container_security() -> Manifest:
    """Return the restricted profile for a container whose pod has none of its own, as KServe makes it."""
    of_pod = pod_security()
    del of_pod["fsGroup"]
    return container_security() | of_pod


def pod_security() -> Manifest:
    """Return the pod's part of the restricted profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def amounts(cpus: int, memory: str, gpus: int = 0) -> Manifest:
    """Requests equal limits: the pod's class is Guaranteed, and Ray counts what it has."""
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def common_mounts() -> list[Manifest]:
    """Mount what every container of rayinfer writes to."""
    return [
        {"name": "shared-mem", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "home", "mountPath": HOME},
    ]


def common_volumes(service: ServiceFile, shared_memory: str) -> list[Manifest]:
    """Return the volumes of these, with the shared memory."""
    return [
        {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "home", "emptyDir": {"sizeLimit": service.storage.cache_size}},
    ]


def model_mounts(service: ServiceFile) -> list[Manifest]:
    """Mount the model files, for reading."""
    if service.storage.kind == "cache":
        return []
    return [{"name": "models", "mountPath": MODELS, "readOnly": True}]


def model_volumes(service: ServiceFile) -> list[Manifest]:
    """Return the volume of the model files."""
    storage = service.storage
    if storage.kind == "pvc":
        return [{"name": "models", "persistentVolumeClaim": {"claimName": service.models_claim, "readOnly": True}}]
    if storage.kind == "init":
        return [{"name": "models", "emptyDir": {"sizeLimit": storage.cache_size}}]
    if storage.kind == "bucket":
        csi: Manifest = {"driver": storage.csi_driver, "readOnly": True}
        if storage.csi_attributes:
            csi["volumeAttributes"] = storage.csi_attributes
        return [{"name": "models", "csi": csi}]
    return []


def model_loader(service: ServiceFile) -> Manifest:
    """Build the container that fills it before Ray starts."""
    return {
        "name": "load-models",
        "image": service.image_name,
        "command": service.storage.init_command,
        "env": [HOME_VARIABLES[0], *own_environment(service)],
        **secret_environment(service),
        "resources": amounts(1, "2Gi"),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "home", "mountPath": HOME},
        ],
    }


def _toleration(toleration: Toleration) -> Manifest:
    found: Manifest = {"operator": toleration.operator}
    for name in ("key", "value", "effect"):
        if text := getattr(toleration, name):
            found[name] = text
    if toleration.seconds is not None:
        found["tolerationSeconds"] = toleration.seconds
    return found
