"""Rules of manifests beyond their schemas: free names, texts that are configurations, labels that must meet."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ray.scripts.scripts import start

from rayinfer_deployments.config_check import mistakes_in
from support.kubernetes.manifest_schemas import schema_mistakes

DASHBOARDS = {f"rayinfer-{name}.json" for name in ("service", "engines", "tenants", "cluster", "batches", "predictors")}
RESOURCES = {"cpu", "memory", "nvidia.com/gpu", "storage", "ephemeral-storage"}
LABELS = {
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "batch.kubernetes.io/job-name",
    "inference.networking.k8s.io/engine-type",
    "kubernetes.io/metadata.name",
    "kueue.x-k8s.io/queue-name",
    "grafana_dashboard",
    "severity",  # of alerts
    "window",
}
FREE_NAMES = {
    "labels": LABELS,
    "matchLabels": LABELS,
    "requests": RESOURCES,
    "limits": RESOURCES,
    "annotations": {"summary", "description", "dashboard"},
    "data": DASHBOARDS,
}


def manifest_mistakes(manifest: dict[str, Any], folder: Path) -> list[str]:
    """List all mistakes of one manifest; `folder` takes files for the check of Serve's configuration."""
    mistakes = schema_mistakes(manifest)
    mistakes += _unknown_free_names(manifest, "")
    config = manifest.get("spec", {}).get("serveConfigV2") if manifest.get("kind") == "RayService" else None
    if isinstance(config, str):
        file = folder / "serve-config.yaml"
        file.write_text(config)
        mistakes += [f"serveConfigV2: {mistake}" for mistake in mistakes_in(file)]
    return mistakes


def selector_mistakes(manifests: list[dict[str, Any]]) -> list[str]:
    """List selectors that match no pod of the same manifests."""
    pods = list(_pod_labels(manifests))
    return [
        f"{manifest['kind']} {manifest['metadata']['name']}: no pod has the labels {selected}"
        for manifest in manifests
        for selected in _selectors(manifest)
        if not any(selected.items() <= labels.items() for labels in pods)
    ]


def _unknown_free_names(value: Any, place: str) -> list[str]:
    if isinstance(value, list):
        return [
            mistake for index, entry in enumerate(value) for mistake in _unknown_free_names(entry, f"{place}{index}.")
        ]
    if not isinstance(value, dict):
        return []
    mistakes = []
    for key, inner in value.items():
        known = _start_options() if key == "rayStartParams" else FREE_NAMES.get(key)
        if key == "selector" and _is_of_a_service(inner):
            known = LABELS
        if known is not None and isinstance(inner, dict):
            mistakes += [f"{place}{key}.{name}: unknown name" for name in inner if name not in known]
        mistakes += _unknown_free_names(inner, f"{place}{key}.")
    return mistakes


def _is_of_a_service(selector: Any) -> bool:
    """Return whether a selector is a Service's, which has labels without `matchLabels`."""
    return isinstance(selector, dict) and all("/" in name for name in selector)


@cache
def _start_options() -> set[str]:
    """Return the options of `ray start`."""
    return {option.lstrip("-") for parameter in start.params for option in parameter.opts}


def _pod_labels(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, list):
        for entry in value:
            yield from _pod_labels(entry)
    elif isinstance(value, dict):
        if "template" in value and isinstance(value["template"], dict):
            yield value["template"].get("metadata", {}).get("labels", {})
        for inner in value.values():
            yield from _pod_labels(inner)


def _selectors(value: Any) -> Iterator[dict[str, str]]:
    """Find selectors of pods, not of namespaces."""
    if isinstance(value, list):
        for entry in value:
            yield from _selectors(entry)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in ("selector", "podSelector", "labelSelector") and isinstance(inner, dict):
                yield inner.get("matchLabels", {} if "matchExpressions" in inner else inner)
            elif key != "namespaceSelector":
                yield from _selectors(inner)
