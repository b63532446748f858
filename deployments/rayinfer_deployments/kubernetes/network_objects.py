"""NetworkPolicies, the HTTPRoute and the InferencePool of a service."""

from rayinfer_deployments.kubernetes.cluster_settings import IngressSettings, NetworkPolicySettings
from rayinfer_deployments.kubernetes.pod_parts import pod_labels
from rayinfer_deployments.kubernetes.ray_objects import metadata
from rayinfer_deployments.kubernetes.serve_config import GRPC_PORT, HTTP_PORT
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
REDIS_PORT = 6379
PICKER_PORT = 9002


def network_policies(service: ServiceFile, settings: NetworkPolicySettings) -> list[Manifest]:
    """Build the policy of Ray's pods, and that of the Redis that is started beside them."""
    policies = [_ray_policy(service, settings)]
    if service.high_availability is not None and not service.high_availability.redis_address:
        redis = {
            "podSelector": {"matchLabels": pod_labels(service, "redis")},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [_own_pods(service)], "ports": [_tcp(REDIS_PORT)]}],
            "egress": [],
        }
        policies.append(_policy(service, f"{service.name}-redis", redis))
    return policies


def http_route(service: ServiceFile, ingress: IngressSettings) -> Manifest:
    """Build the route from the Gateway to the service, or to the pool from which a picker chooses a pod."""
    gateway: Manifest = {"name": ingress.gateway}
    if ingress.gateway_namespace:
        gateway["namespace"] = ingress.gateway_namespace
    backend: Manifest = {"name": f"{service.name}-serve-svc", "port": HTTP_PORT}
    if ingress.inference_pool:
        backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": service.name}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [backend],
        "timeouts": {"request": f"{int(service.request_timeout_s)}s"},
    }
    spec: Manifest = {"parentRefs": [gateway], "rules": [rule]}
    if ingress.hostnames:
        spec["hostnames"] = ingress.hostnames
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(service, service.name, "ingress"),
        "spec": spec,
    }


def inference_pool(service: ServiceFile, ingress: IngressSettings) -> Manifest:
    """Build the pool of the pods with a router; the picker reads vLLM's metrics at /metrics of the same port."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(service, service.name, "ingress"),
        "spec": {
            "selector": {"matchLabels": pod_labels(service, "worker")},
            "targetPorts": [{"number": HTTP_PORT}],
            "endpointPickerRef": {
                "name": ingress.endpoint_picker,
                "port": {"number": PICKER_PORT},
                "failureMode": "FailOpen" if ingress.picker_fails_open else "FailClose",
            },
        },
    }


def _ray_policy(service: ServiceFile, settings: NetworkPolicySettings) -> Manifest:
    serving = [_tcp(HTTP_PORT), *([_tcp(GRPC_PORT)] if service.grpc else [])]
    clients = [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}} for name in settings.client_namespaces]
    operator = {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: settings.operator_namespace}}}
    monitoring = {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: settings.monitoring_namespace}}}
    ingress: list[Manifest] = [
        {"from": [_own_pods(service)]},
        {"from": [operator], "ports": [_tcp(8265), _tcp(HTTP_PORT)]},
        {"from": [monitoring], "ports": [_tcp(8080), _tcp(HTTP_PORT)]},
    ]
    if clients:
        ingress.insert(1, {"from": clients, "ports": serving})
    dns = {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: "kube-system"}}}
    egress: list[Manifest] = [
        {"to": [_own_pods(service)]},
        {"to": [dns], "ports": [{"protocol": "UDP", "port": 53}, _tcp(53)]},
    ]
    if settings.egress_cidrs:
        blocks = [{"ipBlock": {"cidr": cidr}} for cidr in settings.egress_cidrs]
        egress.append({"to": blocks, "ports": [_tcp(443)]})
    if service.autoscale_pods:
        egress.append({"ports": [_tcp(443), _tcp(6443)]})  # the API server, which Ray's autoscaler asks for pods
    if service.high_availability is not None and service.high_availability.redis_address:
        port = int(service.high_availability.redis_address.rpartition(":")[2])
        egress.append({"ports": [_tcp(port)]})
    spec = {
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": "rayinfer", "app.kubernetes.io/instance": service.name}
        },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return _policy(service, service.name, spec)


def _policy(service: ServiceFile, name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(service, name, "network"),
        "spec": spec,
    }


def _own_pods(service: ServiceFile) -> Manifest:
    labels = {"app.kubernetes.io/name": "rayinfer", "app.kubernetes.io/instance": service.name}
    return {"podSelector": {"matchLabels": labels}}


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
