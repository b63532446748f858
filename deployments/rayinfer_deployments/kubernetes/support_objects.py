"""Objects beside the RayService: disruption budget, claim, Redis, Kueue's queues, KServe's runtime."""

from rayinfer_deployments.kubernetes.cluster_settings import (
    HighAvailabilitySettings,
    KserveSettings,
    Manifest,
    QueueSettings,
)
from rayinfer_deployments.kubernetes.ray_objects import metadata
from rayinfer_deployments.kubernetes.ray_pods import (
    CACHE,
    HOME,
    container_security,
    grace_period_s,
    pod_labels,
    pod_security,
)
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT
from rayinfer_deployments.kubernetes.service_file import ServiceFile

QUEUE_API = "kueue.x-k8s.io/v1beta2"
KSERVE_MODEL = "/mnt/models"


def disruption_budget(service: ServiceFile) -> Manifest:
    """Allow voluntary disruptions one worker at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service, f"{service.name}-workers"),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pod_labels(service, "worker")}},
    }


def model_claim(service: ServiceFile) -> Manifest:
    """Build the claim of the model files."""
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": service.storage.claim_size}},
    }
    if service.storage.storage_class:
        spec["storageClassName"] = service.storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(service, f"{service.name}-models", "storage"),
        "spec": spec,
    }


def redis(service: ServiceFile, settings: HighAvailabilitySettings) -> list[Manifest]:
    """Build a Redis with a volume of its own, which keeps Ray's table over restarts."""
    labels = pod_labels(service, "redis")
    password = {"name": settings.redis_password_secret, "key": "password"}
    container = {
        "name": "redis",
        "image": settings.redis_image,
        "command": ["sh", "-c", 'exec redis-server --appendonly yes --dir /data --requirepass "$REDIS_PASSWORD"'],
        "env": [{"name": "REDIS_PASSWORD", "valueFrom": {"secretKeyRef": password}}],
        "ports": [{"name": "redis", "containerPort": 6379}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 5},
        "livenessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 10, "failureThreshold": 6},
        "securityContext": container_security(),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": settings.redis_storage}},
        },
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        "containers": [container],
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(service, f"{service.name}-redis", "redis"),
        "spec": {
            "serviceName": f"{service.name}-redis",
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }
    return [_redis_service(service), stateful_set]


def queues(service: ServiceFile, settings: QueueSettings) -> list[Manifest]:
    """Build Kueue's flavor, queue of the cluster with its quota, and queue of the namespace."""
    quota: list[Manifest] = [
        {"name": "cpu", "nominalQuota": settings.cpus},
        {"name": "memory", "nominalQuota": settings.memory},
    ]
    if settings.gpus:
        quota.append({"name": "nvidia.com/gpu", "nominalQuota": settings.gpus})
    group = {
        "coveredResources": [amount["name"] for amount in quota],
        "flavors": [{"name": settings.name, "resources": quota}],
    }
    kinds: list[tuple[str, Manifest]] = [
        ("ResourceFlavor", {"nodeLabels": settings.node_labels} if settings.node_labels else {}),
        (
            "ClusterQueue",
            {
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [group],
            },
        ),
        ("LocalQueue", {"clusterQueue": settings.name}),
    ]
    return [
        {"apiVersion": QUEUE_API, "kind": kind, "metadata": metadata(service, settings.name, "queue"), "spec": spec}
        for kind, spec in kinds
    ]


def kserve(service: ServiceFile, settings: KserveSettings) -> list[Manifest]:
    """Build a runtime that serves one model by `rayinfer serve`, and an InferenceService of it."""
    group = service.workers[0]
    model = service.app_args().models[0]
    source = KSERVE_MODEL if settings.storage_uri else model.model
    amounts = {"cpu": str(group.cpus), "memory": group.memory}
    if group.gpus:
        amounts["nvidia.com/gpu"] = str(group.gpus)
    container: Manifest = {
        "name": "kserve-container",
        "image": service.image,
        "args": _serve_arguments(service, source),
        "env": _serve_environment(service),
        "ports": [{"name": "http1", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": HTTP_PORT}, "periodSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/v2/health/live", "port": HTTP_PORT},
            "periodSeconds": 10,
            "failureThreshold": 30,
        },
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "shared-mem", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "home", "mountPath": HOME},
        ],
    }
    runtime = {
        "supportedModelFormats": [{"name": settings.model_format, "version": "1", "autoSelect": True}],
        "protocolVersions": ["v2"],
        "containers": [container],
        "volumes": [
            {"name": "shared-mem", "emptyDir": {"medium": "Memory", "sizeLimit": group.shared_memory}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "home", "emptyDir": {"sizeLimit": service.storage.cache_size}},
        ],
    }
    inference = {"modelFormat": {"name": settings.model_format, "version": "1"}, "runtime": service.name}
    predictor: Manifest = {
        "minReplicas": settings.min_replicas,
        "maxReplicas": settings.max_replicas,
        "terminationGracePeriodSeconds": grace_period_s(service),
        "model": inference | {"protocolVersion": "v2"},
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


def _serve_arguments(service: ServiceFile, source: str) -> list[str]:
    arguments = ["rayinfer", "serve", source, "--host", "0.0.0.0", "--port", str(HTTP_PORT)]
    return [*arguments, "--grpc-port", str(GRPC_PORT) if service.grpc else "0"]


def _serve_environment(service: ServiceFile) -> list[Manifest]:
    variables: list[Manifest] = [{"name": "HOME", "value": HOME}, {"name": "RAYINFER_CACHE", "value": CACHE}]
    if service.auth is not None:
        key = {"name": service.auth.api_keys_secret, "key": "keys"}
        variables.append({"name": "RAYINFER_API_KEYS", "valueFrom": {"secretKeyRef": key}})
    return variables


def _redis_service(service: ServiceFile) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service, f"{service.name}-redis", "redis"),
        "spec": {
            "clusterIP": "None",
            "selector": pod_labels(service, "redis"),
            "ports": [{"name": "redis", "port": 6379, "targetPort": 6379}],
        },
    }
