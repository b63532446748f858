"""Results of a dashboard's queries."""

import math
from dataclasses import dataclass

from rayinfer_deployments.monitoring.panels import Dashboard, Panel, Query
from support.monitoring.prometheus_server import PrometheusServer

VARIABLES = {"$__rate_interval": "10s", "$job": ".*", "$model": ".*"}


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel: its legend, times in seconds since the start, and values."""

    legend: str
    times_s: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Span:
    """Time that is shown, in seconds since 1970."""

    start_s: float
    end_s: float


def lines_of(prometheus: PrometheusServer, panel: Panel, span: Span) -> list[Line]:
    """Evaluate all queries of a panel; series without a finite value are left out."""
    return [line for query in panel.queries for line in _lines(prometheus, query, span)]


def panels_without_data(prometheus: PrometheusServer, dashboards: tuple[Dashboard, ...], span: Span) -> set[str]:
    """Name each query that has no finite value."""
    return {
        f"{dashboard.name}: {panel.title}" + (f" [{number}]" if number else "")
        for dashboard in dashboards
        for panel in dashboard.panels
        for number, query in enumerate(panel.queries)
        if not _lines(prometheus, query, span)
    }


def _lines(prometheus: PrometheusServer, query: Query, span: Span) -> list[Line]:
    expression = query.expression
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    lines = []
    for series in prometheus.series(expression, span.start_s, span.end_s):
        points = [(float(time_s) - span.start_s, float(text)) for time_s, text in series["values"]]
        points = [point for point in points if math.isfinite(point[1])]
        if points:
            lines.append(
                Line(_legend(query, series["metric"]), [at for at, _ in points], [value for _, value in points])
            )
    return lines


def _legend(query: Query, labels: dict[str, str]) -> str:
    text = query.legend
    for label, value in labels.items():
        text = text.replace("{{" + label + "}}", value)
    return text
