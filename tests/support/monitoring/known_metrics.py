"""Metrics that expressions may name: what a service exports, what rules record, what Prometheus and Ray add."""

from importlib.util import find_spec
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rayinfer_deployments.monitoring.foreign_metrics import PROMETHEUS_METRICS, RAY_METRICS
from rayinfer_deployments.monitoring.objectives import Objectives
from rayinfer_deployments.monitoring.rule_files import placed_groups
from support.monitoring.filled_metrics import filled_metrics
from support.monitoring.promql_names import names_in


def exported_labels(router: str) -> dict[str, set[str]]:
    """Return the labels of every sample that a service exports, by the sample's name."""
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(filled_metrics(router).render().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def known_metrics() -> dict[str, set[str]]:
    """Return all labels by metric."""
    recorded = {
        rule["record"]: names_in(rule["expr"]).kept
        for group in placed_groups(Objectives())
        for rule in group["rules"]
        if "record" in rule
    }
    foreign = {metric.name: set(metric.labels) for metric in (*PROMETHEUS_METRICS, *RAY_METRICS)}
    return exported_labels("router-1") | recorded | foreign


def text_of_rays_agent() -> str:
    """Return the program of Ray's agent that exports the nodes' metrics."""
    package = find_spec("ray")
    assert package is not None
    assert package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "dashboard" / "modules" / "reporter"
    return (folder / "reporter_agent.py").read_text()
