"""Dashboards as Grafana's JSON."""

import json
from typing import Any

from rayinfer.metrics import metric_list
from rayinfer_deployments.monitoring.dashboards.all_dashboards import all_dashboards
from rayinfer_deployments.monitoring.panels import Dashboard, Panel

SCHEMA_VERSION = 39
HEIGHTS = {"timeseries": 8, "heatmap": 8, "stat": 4}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_texts() -> dict[str, str]:
    """Return the JSON of all dashboards by their names."""
    return {each.name: json.dumps(to_grafana(each), indent=1) + "\n" for each in all_dashboards()}


def to_grafana(dashboard: Dashboard) -> dict[str, Any]:
    """Return the object that Grafana imports."""
    return {
        "uid": f"rayinfer-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["rayinfer"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "links": [_link_to_others()],
        "panels": _placed_panels(dashboard),
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("job", "Service", f"label_values({metric_list.ROUTER_INFO.name}, job)"),
    ]
    if dashboard.has_model:
        metric = f'{metric_list.ENGINES.name}{{job=~"$job"}}'
        variables.append(_variable("model", "Model", f"label_values({metric}, model_name)"))
    return variables


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _link_to_others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "rayinfer",
        "tags": ["rayinfer"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _placed_panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Place panels from left to right, and below each other where a row of 24 columns is full."""
    placed: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        position = {"x": 0, "y": top, "w": 24, "h": 1}
        placed.append(
            {"id": len(placed) + 1, "type": "row", "title": row.title, "gridPos": position, "collapsed": False}
        )
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > 24:
                top, left, height = top + height, 0, 0
            position = {"x": left, "y": top, "w": panel.width, "h": HEIGHTS[panel.kind]}
            placed.append({"id": len(placed) + 1, "gridPos": position} | _panel(panel))
            left, height = left + panel.width, max(height, HEIGHTS[panel.kind])
        top += height
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(panel, index) for index in range(len(panel.queries))],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(panel: Panel, index: int) -> dict[str, Any]:
    query = panel.queries[index]
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "instant": panel.kind == "stat",
        "range": panel.kind != "stat",
    }


def _field(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if panel.is_stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    colors = panel.thresholds or ((0, "green"),)
    steps = [{"color": color, "value": None if index == 0 else value} for index, (value, color) in enumerate(colors)]
    return defaults | {"thresholds": {"mode": "absolute", "steps": steps}}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "value_and_name",
        }
    if panel.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": panel.unit}, "color": {"scheme": "Blues", "mode": "scheme"}}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
