"""A Helm chart whose values are the names of service.yaml."""

import json
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel

from rayinfer import __version__
from rayinfer_deployments.app_args import LLMAppArgs
from rayinfer_deployments.cluster.ray_environment import Profile
from rayinfer_deployments.kubernetes.cluster_settings import (
    AuthSettings,
    BatchSettings,
    HighAvailabilitySettings,
    IngressSettings,
    KserveSettings,
    MonitoringSettings,
    NetworkPolicySettings,
    QueueSettings,
)
from rayinfer_deployments.kubernetes.engine_options import ENGINE_SETTINGS
from rayinfer_deployments.kubernetes.kustomize_files import HEADER, merge_patch, overlaid, to_yaml
from rayinfer_deployments.kubernetes.pod_parts import set_environment
from rayinfer_deployments.kubernetes.pod_settings import WorkerGroup
from rayinfer_deployments.kubernetes.service_file import (
    NOT_OF_ENGINES_IN_JOBS,
    NOT_OF_JOBS,
    NOT_OF_KSERVE,
    NOT_OF_SERVE,
    OWN_VARIABLES,
    SETTLED_ELSEWHERE,
    ServiceFile,
)
from rayinfer_deployments.kubernetes.setting_types import Manifest
from rayinfer_deployments.monitoring.grafana_json import dashboard_texts
from rayinfer_deployments.monitoring.rule_files import rule_groups

TEMPLATES = Path(__file__).with_name("chart")
FOLDER = "helm/rayinfer"
PARTS: dict[str, type[BaseModel]] = {
    "auth": AuthSettings,
    "batch": BatchSettings,
    "high_availability": HighAvailabilitySettings,
    "ingress": IngressSettings,
    "kserve": KserveSettings,
    "monitoring": MonitoringSettings,
    "network_policy": NetworkPolicySettings,
    "queue": QueueSettings,
    "worker": WorkerGroup,
}


def helm_files(settings: dict[str, Any], overlays: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Write the chart, and values for each overlay: texts by path."""
    base = _values(overlaid(settings, {}))
    chart = {
        "apiVersion": "v2",
        "name": "rayinfer",
        "description": "An inference service for language models on KubeRay",
        "type": "application",
        "version": __version__,
        "appVersion": ray.__version__,
    }
    files = {
        f"{FOLDER}/Chart.yaml": HEADER + to_yaml(chart),
        f"{FOLDER}/values.yaml": HEADER + to_yaml(base),
        f"{FOLDER}/values.schema.json": json.dumps(_schema(), indent=1) + "\n",
    }
    for template in sorted(TEMPLATES.iterdir()):
        files[f"{FOLDER}/templates/{template.name}"] = template.read_text()
    files[f"{FOLDER}/files/rules.yaml"] = to_yaml(rule_groups())
    for name, text in dashboard_texts().items():
        files[f"{FOLDER}/files/dashboards/rayinfer-{name}.json"] = text
    for name, changes in overlays.items():
        patch = merge_patch(base, _values(overlaid(settings, changes)))
        files[f"helm/values/{name}.yaml"] = HEADER + to_yaml(patch)
    return files


def _values(service: ServiceFile) -> Manifest:
    """Return a service's settings with their defaults, and what the chart needs besides."""
    return service.model_dump(mode="json") | {
        "environments": set_environment(),
        "engine_settings": ENGINE_SETTINGS,
        "own_variables": sorted(OWN_VARIABLES),
        "not_of_jobs": {"parts": list(NOT_OF_JOBS), "model": list(NOT_OF_ENGINES_IN_JOBS)},
        "not_of_kserve": {"parts": list(NOT_OF_KSERVE), "model": list(NOT_OF_SERVE)},
        "profile_limits": {profile.value: profile.limits for profile in Profile},
        "defaults": {name: _defaults(part) for name, part in PARTS.items()},
    }


def _defaults(part: type[BaseModel]) -> Manifest:
    defaults = {name: field.default for name, field in part.model_fields.items() if not field.is_required()}
    return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in defaults.items()}


def _schema() -> Manifest:
    """Return the schema by which Helm refuses unknown values, those of the application's arguments too."""
    schema = ServiceFile.model_json_schema()
    app = LLMAppArgs.model_json_schema()
    schema["$defs"] |= app.pop("$defs")
    for name in SETTLED_ELSEWHERE:
        del app["properties"][name]
    schema["properties"] |= {"app": app, "limits": {"$ref": "#/$defs/RouterLimits"}}
    _refuse_unknown_keys(schema)
    schema["properties"] |= {
        "environments": {"type": "object"},
        "engine_settings": {"type": "array"},
        "own_variables": {"type": "array"},
        "not_of_jobs": {"type": "object"},
        "not_of_kserve": {"type": "object"},
        "profile_limits": {"type": "object"},
        "defaults": {"type": "object"},
        "global": {"type": "object"},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _refuse_unknown_keys(schema: Any) -> None:
    """Have mappings whose keys have a pattern take no others, as pydantic does."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema["additionalProperties"] = False
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            _refuse_unknown_keys(inner)
