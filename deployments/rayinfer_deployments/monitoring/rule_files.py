"""Rules as Prometheus reads them."""

from typing import Any

from rayinfer_deployments.monitoring.alerts import Alert, alerts
from rayinfer_deployments.monitoring.objectives import Objectives
from rayinfer_deployments.monitoring.recording_rules import (
    Recording,
    budget_recordings,
    objective_recordings,
    state_recordings,
)


def rule_groups() -> list[dict[str, Any]]:
    """Return all groups, with places for the objectives."""
    return [
        {"name": "rayinfer-state", "rules": [_recording(rule) for rule in state_recordings()]},
        {"name": "rayinfer-objectives", "rules": [_recording(rule) for rule in objective_recordings()]},
        {"name": "rayinfer-budgets", "interval": "5m", "rules": [_recording(rule) for rule in budget_recordings()]},
        {"name": "rayinfer-alerts", "rules": [_alert(rule) for rule in alerts()]},
    ]


def placed_groups(objectives: Objectives) -> list[dict[str, Any]]:
    """Return all groups with the values of objectives in their places."""
    placed = _placed(rule_groups(), objectives)
    assert isinstance(placed, list)
    return placed


def _placed(value: Any, objectives: Objectives) -> Any:
    if isinstance(value, str):
        return objectives.placed(value)
    if isinstance(value, list):
        return [_placed(each, objectives) for each in value]
    if isinstance(value, dict):
        return {key: _placed(each, objectives) for key, each in value.items()}
    return value


def _recording(rule: Recording) -> dict[str, Any]:
    return {"record": rule.definition.name, "expr": rule.expression}


def _alert(rule: Alert) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.expression,
        "for": rule.lasting,
        "labels": {"severity": rule.severity} | ({"window": rule.window} if rule.window else {}),
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "dashboard": f"rayinfer-{rule.dashboard}",
        },
    }
