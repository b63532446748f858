"""All objects of a service, in the order in which they are created."""

from rayinfer_deployments.kubernetes.kserve_objects import kserve
from rayinfer_deployments.kubernetes.monitoring_objects import monitoring
from rayinfer_deployments.kubernetes.network_objects import http_route, inference_pool, network_policies
from rayinfer_deployments.kubernetes.ray_objects import ray_job, ray_service
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest
from rayinfer_deployments.kubernetes.support_objects import disruption_budget, model_claim, queues, redis


def manifests(service: ServiceFile) -> list[Manifest]:
    """Build the objects of a service, of an offline job or of a KServe runtime, whichever the file is of."""
    objects: list[Manifest] = []
    if service.queue is not None:
        objects += queues(service, service.queue)
    if service.storage.kind == "pvc" and not service.storage.claim:
        objects.append(model_claim(service))
    if service.high_availability is not None and not service.high_availability.redis_address:
        objects += redis(service, service.high_availability)
    if service.network_policy is not None:
        objects += network_policies(service, service.network_policy)
    if service.kserve is not None:
        return objects + kserve(service, service.kserve)
    if service.batch is not None:
        return [*objects, ray_job(service, service.batch)]
    objects += [disruption_budget(service), ray_service(service)]
    if service.ingress is not None:
        objects.append(http_route(service, service.ingress))
        if service.ingress.inference_pool:
            objects.append(inference_pool(service, service.ingress))
    if service.monitoring is not None:
        objects += monitoring(service, service.monitoring)
    return objects
