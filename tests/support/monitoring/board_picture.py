"""A dashboard drawn by matplotlib from its queries' results, in the places that Grafana gives its panels."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rayinfer_deployments.monitoring.grafana_json import to_grafana
from rayinfer_deployments.monitoring.panels import Dashboard, Panel
from support.monitoring.board_queries import Line, Span, lines_of
from support.monitoring.prometheus_server import PrometheusServer

COLUMN_INCHES, ROW_INCHES = 0.72, 0.42
UNITS = {"reqps": "requests/s", "short": "", "percent": "%", "mbytes": "MiB"}
SCALES: dict[str, list[tuple[float, float, str]]] = {  # from which value on: a divisor and its unit
    "s": [(60, 60, "min"), (1, 1, "s"), (0, 0.001, "ms")],
    "bytes": [(2**30, 2**30, "GiB"), (2**20, 2**20, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "bytes")],
    "Bps": [(2**20, 2**20, "MiB/s"), (2**10, 2**10, "KiB/s"), (0, 1, "bytes/s")],
    "percentunit": [(0, 0.01, "%")],
}


def draw_dashboard(prometheus: PrometheusServer, dashboard: Dashboard, span: Span, file: Path) -> None:
    """Draw all panels with data."""
    figures = import_module("matplotlib.figure")  # make test-dashboards installs it
    placed = to_grafana(dashboard)["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in placed) + 1
    figure = figures.Figure(figsize=(24 * COLUMN_INCHES, height * ROW_INCHES))
    figure.text(0.008, 1 - 0.7 / height, dashboard.title, fontsize=15, weight="bold", va="center")
    panels = iter(dashboard.panels)
    for place in placed:
        position = place["gridPos"]
        if place["type"] == "row":
            figure.text(
                0.008, 1 - (position["y"] + 1.6) / height, place["title"], fontsize=11, color="#555", va="center"
            )
            continue
        panel = next(panels)
        box = (
            (position["x"] + 1.5) / 24,
            1 - (position["y"] + position["h"] - 1.0) / height,
            (position["w"] - 2.0) / 24,
            (position["h"] - 3.2) / height,
        )
        _draw_panel(figure.add_axes(box), panel, lines_of(prometheus, panel, span))
    figure.savefig(file, dpi=70)


def _draw_panel(axes: Any, panel: Panel, lines: Sequence[Line]) -> None:
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    if not lines:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", color="gray", transform=axes.transAxes)
        axes.set_axis_off()
        return
    divisor, unit = _scale(panel, max(abs(value) for line in lines for value in line.values))
    if panel.kind == "stat":
        _draw_numbers(axes, lines, divisor, unit)
    elif panel.kind == "heatmap":
        _draw_heatmap(axes, lines)
    else:
        _draw_lines(axes, panel, lines, divisor, unit)


def _draw_numbers(axes: Any, lines: Sequence[Line], divisor: float, unit: str) -> None:
    axes.set_axis_off()
    for number, line in enumerate(lines):
        text = f"{line.values[-1] / divisor:.3g} {unit}"
        height = 0.9 - number * 0.75 / len(lines)
        axes.text(0, height, text, fontsize=13, va="top", color="tab:green", transform=axes.transAxes)
        axes.text(1, height, line.legend, fontsize=7, va="top", ha="right", transform=axes.transAxes)


def _draw_heatmap(axes: Any, lines: Sequence[Line]) -> None:
    buckets = sorted((line for line in lines if line.legend != "+Inf"), key=lambda line: float(line.legend))
    times = buckets[0].times_s
    known = [dict(zip(line.times_s, line.values, strict=True)) for line in buckets]
    cumulative = [[values.get(at, 0.0) for at in times] for values in known]
    counts = [
        [max(0.0, value - below) for value, below in zip(row, before, strict=True)]
        for row, before in zip(cumulative, [[0.0] * len(times), *cumulative], strict=False)
    ]
    used = [index for index, row in enumerate(counts) if any(value > 0 for value in row)] or [0]
    first, last = used[0], used[-1] + 1
    axes.pcolormesh(times, range(last - first), counts[first:last], cmap="Blues", shading="nearest")
    axes.set_yticks(range(last - first), [f"{float(line.legend):g} s" for line in buckets[first:last]])


def _draw_lines(axes: Any, panel: Panel, lines: Sequence[Line], divisor: float, unit: str) -> None:
    if panel.is_stacked:
        times = sorted({at for line in lines for at in line.times_s})
        known = [dict(zip(line.times_s, line.values, strict=True)) for line in lines]
        rows = [[values.get(at, 0.0) / divisor for at in times] for values in known]
        axes.stackplot(times, rows, labels=[line.legend for line in lines], alpha=0.7)
    else:
        for line in lines:
            axes.plot(line.times_s, [value / divisor for value in line.values], linewidth=1, label=line.legend)
    axes.set_xlabel("time (s)", fontsize=6, labelpad=1)
    axes.set_ylabel(unit, fontsize=7)
    axes.set_ylim(bottom=None if panel.least is None else 0, top=None if panel.most is None else panel.most / divisor)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="upper left", ncols=2, framealpha=0.6)


def _scale(panel: Panel, largest: float) -> tuple[float, str]:
    for least, divisor, unit in SCALES.get(panel.unit, []):
        if largest >= least:
            return divisor, unit
    return 1.0, UNITS.get(panel.unit, panel.unit.removeprefix("suffix: "))
