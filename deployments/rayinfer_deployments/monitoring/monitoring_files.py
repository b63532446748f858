"""Dashboards and rules as files."""

import yaml

from rayinfer_deployments.monitoring.grafana_json import dashboard_texts
from rayinfer_deployments.monitoring.objectives import Objectives
from rayinfer_deployments.monitoring.rule_files import placed_groups

MONITORING_FOLDERS = ("dashboards", "alerts")
HEADER = "# Written by `rayinfer dashboards` and `rayinfer build`.\n"


def monitoring_files(objectives: Objectives) -> dict[str, str]:
    """Return all texts by their paths: dashboards to import into Grafana, and rules for Prometheus."""
    rules = yaml.safe_dump({"groups": placed_groups(objectives)}, sort_keys=False, width=120)
    dashboards = {f"dashboards/rayinfer-{name}.json": text for name, text in dashboard_texts().items()}
    return dashboards | {"alerts/rayinfer.rules.yaml": HEADER + rules}


def prometheus_config(target: str, key_file: str | None = None) -> str:
    """Return a configuration of Prometheus that reads one service and applies the rules."""
    job: dict[str, object] = {
        "job_name": "rayinfer",
        "metrics_path": "/metrics",
        "static_configs": [{"targets": [target]}],
    }
    if key_file is not None:
        job["authorization"] = {"credentials_file": key_file}
    config = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["alerts/rayinfer.rules.yaml"],
        "scrape_configs": [job],
    }
    return HEADER + str(yaml.safe_dump(config, sort_keys=False))
