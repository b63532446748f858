"""Pods of Ray's head and of its workers: containers, probes, volumes and their limits."""

from typing import Any

from rayinfer_deployments.applications import CLEAN_UP_S
from rayinfer_deployments.cluster.ray_environment import Profile, cluster_settings
from rayinfer_deployments.kubernetes.pod_settings import LEAST_SHARED_MEMORY, PodSettings, Toleration, WorkerGroup
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

USER_ID = 10001  # of the image's user
HOME = "/home/rayinfer"
CACHE = f"{HOME}/.cache/rayinfer"
HOME_VARIABLES = [{"name": "HOME", "value": HOME}, {"name": "RAYINFER_CACHE", "value": CACHE}]
MODELS = "/models"
# The store of Ray's objects, in bytes: Ray's default, 30 % of the pod, would not fit /dev/shm and lie on the disk.
START_PARAMETERS = {"metrics-export-port": "8080", "object-store-memory": "400000000"}
PRE_STOP_S = 15  # until gateways and Services have dropped the pod
RAYLET_HEALTH = "wget -T 4 -q -O- http://127.0.0.1:52365/api/local_raylet_healthz | grep -q success"
GCS_HEALTH = "wget -T 4 -q -O- http://127.0.0.1:8265/api/gcs_healthz | grep -q success"
SERVE_HEALTH = f"wget -T 4 -q -O- http://127.0.0.1:{HTTP_PORT}/-/healthz | grep -q success"


def pod_labels(service: ServiceFile, component: str) -> dict[str, str]:
    """Label the pods of a service's head or workers; selectors of other objects use the same."""
    return {
        "app.kubernetes.io/name": "rayinfer",
        "app.kubernetes.io/instance": service.name,
        "app.kubernetes.io/component": component,
    }


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
        "resources": _resources(service.head.cpus, service.head.memory),
        "livenessProbe": _probe(f"{RAYLET_HEALTH} && {GCS_HEALTH}", period_s=5, failures=120),
        "readinessProbe": _probe(f"{RAYLET_HEALTH} && {GCS_HEALTH}", period_s=5, failures=10),
        "volumeMounts": [*_common_mounts(), *(_model_mounts(service) if needs_models else [])],
    }
    pod = _pod(service, container) | {
        "automountServiceAccountToken": service.autoscale_pods,
        "terminationGracePeriodSeconds": 60,
        "volumes": [
            *_common_volumes(service, shared_memory=LEAST_SHARED_MEMORY),
            *(_model_volumes(service) if needs_models else []),
        ],
    }
    if needs_models and service.storage.kind == "init":
        pod["initContainers"] = [_model_loader(service)]
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
        "resources": _resources(group.cpus, group.memory, group.gpus),
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", _drain_command(service)]}}},
        "livenessProbe": _probe(RAYLET_HEALTH, period_s=5, failures=120),
        "readinessProbe": _probe(ready, period_s=2, failures=2),
        "volumeMounts": [*_common_mounts(), *_model_mounts(service)],
    }
    labels = pod_labels(service, "worker")
    spread = {
        "maxSkew": 1,
        "topologyKey": group.spread_over,
        "whenUnsatisfiable": "DoNotSchedule" if group.spread_strictly else "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod = _pod(service, container) | {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_period_s(service),
        "topologySpreadConstraints": [spread],
        "volumes": [*_common_volumes(service, group.shared_memory), *_model_volumes(service)],
    }
    pod |= choice_of_machines(group, group.gpus)
    if service.storage.kind == "init":
        pod["initContainers"] = [_model_loader(service)]
    return {
        "groupName": group.name,
        "replicas": group.pods,
        "minReplicas": group.fewest,
        "maxReplicas": group.most,
        "rayStartParams": dict(START_PARAMETERS),
        "template": {"metadata": {"labels": labels | _picker_labels(service)}, "spec": pod},
    }


def submitter(service: ServiceFile) -> Manifest:
    """Build the pod of the Kubernetes Job by which KubeRay submits a job: KubeRay fills in its command and token."""
    container = {
        "name": "ray-job-submitter",
        "image": service.image_name,
        "env": HOME_VARIABLES,
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": HOME}],
    }
    pod = _pod(service, container) | {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "home", "emptyDir": {}}],
    }
    pod |= choice_of_machines(service.head)
    return {"metadata": {"labels": pod_labels(service, "submitter")}, "spec": pod}


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


def pod_security() -> Manifest:
    """Return the pod's part of the restricted profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


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


def _pod(service: ServiceFile, container: Manifest) -> Manifest:
    pod: Manifest = {"containers": [container], "securityContext": pod_security(), "enableServiceLinks": False}
    return pod | pull_secrets(service)


def _container(service: ServiceFile, name: str) -> Manifest:
    return {
        "name": name,
        "image": service.image_name,
        "env": [*set_environment()[service.profile], *own_environment(service)],
        "securityContext": container_security(),
        **secret_environment(service),
    }


def _toleration(toleration: Toleration) -> Manifest:
    found: Manifest = {"operator": toleration.operator}
    for name in ("key", "value", "effect"):
        if text := getattr(toleration, name):
            found[name] = text
    if toleration.seconds is not None:
        found["tolerationSeconds"] = toleration.seconds
    return found


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number}


def _resources(cpus: int, memory: str, gpus: int = 0) -> Manifest:
    """Requests equal limits: the pod's class is Guaranteed, and Ray counts what it has."""
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def _probe(command: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "exec": {"command": ["sh", "-c", command]},
        "initialDelaySeconds": 10,
        "periodSeconds": period_s,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def _common_mounts() -> list[Manifest]:
    return [
        {"name": "shared-mem", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "home", "mountPath": HOME},
    ]


def _common_volumes(service: ServiceFile, shared_memory: str) -> list[Manifest]:
    return [
        {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "home", "emptyDir": {"sizeLimit": service.storage.cache_size}},
    ]


def _model_mounts(service: ServiceFile) -> list[Manifest]:
    if service.storage.kind == "cache":
        return []
    return [{"name": "models", "mountPath": MODELS, "readOnly": True}]


def _model_volumes(service: ServiceFile) -> list[Manifest]:
    storage = service.storage
    if storage.kind == "pvc":
        claim = storage.claim or f"{service.name}-models"
        return [{"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}]
    if storage.kind == "init":
        return [{"name": "models", "emptyDir": {"sizeLimit": storage.cache_size}}]
    if storage.kind == "bucket":
        csi: Manifest = {"driver": storage.csi_driver, "readOnly": True}
        if storage.csi_attributes:
            csi["volumeAttributes"] = storage.csi_attributes
        return [{"name": "models", "csi": csi}]
    return []


def _model_loader(service: ServiceFile) -> Manifest:
    return {
        "name": "load-models",
        "image": service.image_name,
        "command": service.storage.init_command,
        "env": [HOME_VARIABLES[0], *own_environment(service)],
        **secret_environment(service),
        "resources": _resources(1, "2Gi"),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "home", "mountPath": HOME},
        ],
    }


def _picker_labels(service: ServiceFile) -> dict[str, str]:
    """Say to an endpoint picker under which names it finds the metrics: vLLM's."""
    if service.ingress is None or not service.ingress.inference_pool:
        return {}
    return {"inference.networking.k8s.io/engine-type": "vllm"}
