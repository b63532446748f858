"""Dashboards as data: rows of panels, each with queries, a unit and a description."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rayinfer_deployments.monitoring.expressions import Scope

# Units of Grafana: s, bytes, percentunit (0 to 1), percent (0 to 100), reqps, short; "tokens/s" is free text.
Unit = Literal[
    "s",
    "bytes",
    "Bps",
    "mbytes",
    "percentunit",
    "percent",
    "short",
    "reqps",
    "suffix: tokens/s",
    "suffix: rows/s",
    "suffix: tokens",
    "suffix: steps/s",
    "suffix: /s",
]
PanelKind = Literal["timeseries", "stat", "heatmap"]
DASHBOARD = Scope(job="$job", model="$model")


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and the legend of its series, with labels in double braces."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel."""

    title: str
    description: str
    unit: Unit
    queries: Sequence[Query]
    kind: PanelKind = "timeseries"
    width: int = 8  # of 24
    is_stacked: bool = False
    least: float | None = 0  # lower end of the axis; None: as the values are
    most: float | None = None
    thresholds: Sequence[tuple[float, str]] = ()  # values from which a stat has a color


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dashboard:
    """One dashboard."""

    name: str  # of its file, and of its uid
    title: str
    description: str
    rows: Sequence[Row] = field(default_factory=tuple)
    has_model: bool = True  # whether a variable chooses models

    @property
    def panels(self) -> list[Panel]:
        """All panels of all rows."""
        return [panel for row in self.rows for panel in row.panels]
