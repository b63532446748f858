"""The RayService of a service, and the RayJob of an offline job."""

import shlex

import ray
import yaml

from rayinfer_deployments.kubernetes.cluster_settings import BatchSettings, UpgradeSettings
from rayinfer_deployments.kubernetes.engine_options import engine_options
from rayinfer_deployments.kubernetes.ray_pods import head_group, submitter, worker_group
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT, serve_config
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

DATA = "/data"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def metadata(service: ServiceFile, name: str, component: str = "service") -> Manifest:
    """Name and label an object of a service."""
    return {
        "name": name,
        "labels": {
            "app.kubernetes.io/name": "rayinfer",
            "app.kubernetes.io/instance": service.name,
            "app.kubernetes.io/component": component,
        },
    }


def ray_service(service: ServiceFile) -> Manifest:
    """Build the RayService: requests go to ready workers only, the head answers none."""
    spec: Manifest = {
        "serveConfigV2": yaml.safe_dump(serve_config(service), sort_keys=False),
        "excludeHeadPodFromServeSvc": True,
        "upgradeStrategy": _upgrade_strategy(service.upgrade),
        "rayClusterDeletionDelaySeconds": max(service.upgrade.delete_old_after_s, service.longest_drain_s + 60),
        "serveService": _serve_service(service),
        "rayClusterConfig": ray_cluster(service),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": _queued(service, metadata(service, service.name)),
        "spec": spec,
    }


def ray_job(service: ServiceFile, batch: BatchSettings) -> Manifest:
    """Build the RayJob; each retry is a new cluster that goes on from the last checkpoint on the claim."""
    cluster = ray_cluster(service, is_serving=False)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        pod["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": batch.claim}})
        pod["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": DATA})
    spec = {
        "entrypoint": shlex.join(batch_command(service, batch)),
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter(service),
        "backoffLimit": batch.retries,
        "activeDeadlineSeconds": batch.deadline_s,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": batch.ttl_s,
        "suspend": service.queue is not None,
        "rayClusterSpec": cluster,
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _queued(service, metadata(service, f"{service.name}-batch", "batch")),
        "spec": spec,
    }


def batch_command(service: ServiceFile, batch: BatchSettings) -> list[str]:
    """Return the command of an offline job: started again, it goes on where it was."""
    model = service.app_args().models[0]
    command = ["rayinfer", "batch", "run", batch.input, batch.output, "--model", model.model]
    command += ["--workers", str(batch.workers), "--address", "auto"]
    if batch.prompt_template:
        command += ["--prompt-template", batch.prompt_template]
    return command + engine_options(service.app["models"][0])


def ray_cluster(service: ServiceFile, *, is_serving: bool = True) -> Manifest:
    """Build the specification of the Ray cluster."""
    cluster: Manifest = {
        "rayVersion": ray.__version__,
        "enableInTreeAutoscaling": service.autoscale_pods,
    }
    if service.autoscale_pods:
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}  # of KubeRay's own container
        options = {"version": "v2", "upscalingMode": "Default", "idleTimeoutSeconds": 300}
        cluster["autoscalerOptions"] = options | {"securityContext": security}
    token: Manifest = {"mode": "token"}
    if service.auth is not None and service.auth.ray_token_secret:
        token["secretName"] = service.auth.ray_token_secret
    cluster["authOptions"] = token
    if service.high_availability is not None:
        settings = service.high_availability
        password = {"name": settings.redis_password_secret, "key": "password"}
        cluster["gcsFaultToleranceOptions"] = {
            "redisAddress": settings.redis_address or f"{service.name}-redis:6379",
            "redisPassword": {"valueFrom": {"secretKeyRef": password}},
        }
    return cluster | {
        "headGroupSpec": head_group(service, is_serving=is_serving),
        "workerGroupSpecs": [worker_group(service, group, is_serving=is_serving) for group in service.workers],
    }


def _queued(service: ServiceFile, described: Manifest) -> Manifest:
    if service.queue is not None:
        described["labels"][QUEUE_LABEL] = service.queue.name
    return described


def _upgrade_strategy(upgrade: UpgradeSettings) -> Manifest:
    if upgrade.strategy != "NewClusterWithIncrementalUpgrade":
        return {"type": upgrade.strategy}
    return {
        "type": upgrade.strategy,
        "clusterUpgradeOptions": {
            "maxSurgePercent": upgrade.max_surge_percent,
            "stepSizePercent": upgrade.step_size_percent,
            "intervalSeconds": upgrade.interval_s,
            "gatewayClassName": upgrade.gateway_class,
        },
    }


def _serve_service(service: ServiceFile) -> Manifest:
    """Describe the Service of the requests, whose pods KubeRay chooses."""
    ports = [{"name": "http", "port": HTTP_PORT, "targetPort": HTTP_PORT}]
    if service.grpc:
        ports.append({"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT})
    return {
        "metadata": metadata(service, f"{service.name}-serve-svc"),
        "spec": {"type": "ClusterIP", "ports": ports},
    }
