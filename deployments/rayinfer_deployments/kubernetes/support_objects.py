"""Objects beside the RayService: disruption budget, claim, Redis, Kueue's queues."""

from rayinfer_deployments.kubernetes.cluster_settings import HighAvailabilitySettings, QueueSettings
from rayinfer_deployments.kubernetes.pod_parts import container_security, pod_labels, pod_security
from rayinfer_deployments.kubernetes.ray_objects import metadata
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

QUEUE_API = "kueue.x-k8s.io/v1beta2"


def disruption_budget(service: ServiceFile) -> Manifest:
    """Allow voluntary disruptions one worker at a time.

    `maxUnavailable` would allow none: Kubernetes asks the pods' owner for their number, and a RayCluster has no scale.
    """
    least = max(0, sum(group.fewest for group in service.workers) - 1)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service, f"{service.name}-workers"),
        "spec": {"minAvailable": least, "selector": {"matchLabels": pod_labels(service, "worker")}},
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
