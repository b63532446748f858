"""Objects of the Prometheus operator, and dashboards as ConfigMaps."""

from typing import Any

from rayinfer_deployments.kubernetes.cluster_settings import MonitoringSettings
from rayinfer_deployments.kubernetes.pod_parts import pod_labels
from rayinfer_deployments.kubernetes.ray_objects import metadata
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.kubernetes.setting_types import Manifest
from rayinfer_deployments.monitoring.grafana_json import dashboard_texts
from rayinfer_deployments.monitoring.rule_files import placed_groups

OPERATOR_API = "monitoring.coreos.com/v1"


def monitoring(service: ServiceFile, settings: MonitoringSettings) -> list[Manifest]:
    """Build monitors of the pods, rules and dashboards."""
    return [
        *_monitors(service, settings),
        {
            "apiVersion": OPERATOR_API,
            "kind": "PrometheusRule",
            "metadata": _chosen(service, settings, service.name),
            "spec": {"groups": placed_groups(settings.objectives)},
        },
        *(_dashboard(service, settings, name, text) for name, text in dashboard_texts().items()),
    ]


def _monitors(service: ServiceFile, settings: MonitoringSettings) -> list[Manifest]:
    """Build a monitor of the routers, which answer on every worker, and one of Ray's agents on all pods."""
    routers: dict[str, Any] = {"port": "http", "path": "/metrics", "interval": f"{settings.interval_s}s"}
    if settings.metrics_key_secret:
        credentials = {"name": settings.metrics_key_secret, "key": "key"}
        routers["authorization"] = {"type": "Bearer", "credentials": credentials}
    every_pod = {name: value for name, value in pod_labels(service, "").items() if value}
    agents = {"port": "metrics", "path": "/metrics", "interval": f"{settings.interval_s}s"}
    return [
        _monitor(_chosen(service, settings, service.name), pod_labels(service, "worker"), routers),
        _monitor(_chosen(service, settings, f"{service.name}-ray"), every_pod, agents),
    ]


def _monitor(described: Manifest, selected: dict[str, str], endpoint: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": OPERATOR_API,
        "kind": "PodMonitor",
        "metadata": described,
        "spec": {"selector": {"matchLabels": selected}, "podMetricsEndpoints": [endpoint]},
    }


def _dashboard(service: ServiceFile, settings: MonitoringSettings, name: str, text: str) -> Manifest:
    described = metadata(service, f"{service.name}-dashboard-{name}", "monitoring")
    described["labels"][settings.dashboard_label] = "1"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": described, "data": {f"rayinfer-{name}.json": text}}


def _chosen(service: ServiceFile, settings: MonitoringSettings, name: str) -> Manifest:
    described = metadata(service, name, "monitoring")
    described["labels"] |= settings.labels
    return described
