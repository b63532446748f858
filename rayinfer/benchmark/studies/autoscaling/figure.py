"""Engines over time as a figure: a panel for each trace."""

from collections.abc import Sequence

from rayinfer.benchmark.studies.autoscaling.policy_report import OWN, TO_NONE, AutoscalingReport, PolicyOutcome
from rayinfer.benchmark.svg import Drawing

WIDTH, PANEL_HEIGHT, LEFT, RIGHT, GAP, TOP = 900, 170, 24, 16, 74, 40
LETTER, LEGEND_SPACE = 5.6, 14  # widths, in the legend
OFFSET = 2.0  # between lines of the same number
SECONDS_PER_POINT = 10
LONG_S = 7200  # above it, fewer minutes are marked
SHOWN = {"ongoing requests, 2 each": "red", "ongoing requests, 16 each": "brown", TO_NONE: "green", OWN: "blue"}


def svg(report: AutoscalingReport, arrivals: dict[str, list[int]]) -> str:
    """Draw the engines of each policy; `arrivals` has the requests of each trace, minute by minute."""
    traces = list(dict.fromkeys(outcome.trace for outcome in report.outcomes))
    title = "Engines over time; grey: requests that arrived in a minute"
    drawing = Drawing(WIDTH, title)
    drawing.text(0, 16, title, "title")
    start_s, most = report.pace.start_s, report.settings["max_replicas"]
    conditions = f"{start_s:g} s to start an engine, at most {most}; by policy: first tokens in time, engine-hours"
    drawing.text(0, 32, conditions, "note")
    for number, trace in enumerate(traces):
        outcomes = [outcome for outcome in report.outcomes if outcome.trace == trace and outcome.policy in SHOWN]
        _draw_panel(drawing, trace, outcomes, arrivals[trace], TOP + number * (PANEL_HEIGHT + GAP) + 42)
    return drawing.markup(TOP + len(traces) * (PANEL_HEIGHT + GAP))


def _draw_panel(
    drawing: Drawing, trace: str, outcomes: Sequence[PolicyOutcome], arrivals: Sequence[int], top: int
) -> None:
    seconds, most = (max(getattr(each, name) for each in outcomes) for name in ("seconds", "most_engines"))
    width, bottom, legend_left = WIDTH - LEFT - RIGHT, top + PANEL_HEIGHT, 0.0
    drawing.text(0, top - 26, trace, "title")
    for outcome in outcomes:
        policy = outcome.policy.replace("ongoing requests", "ongoing")
        legend = f"{policy}: {outcome.attainment:.1%}, {outcome.engine_hours:.2f} h"
        drawing.text(legend_left, top - 9, legend, f"note {SHOWN[outcome.policy]}")
        legend_left += LETTER * len(legend) + LEGEND_SPACE
    for minute, number in enumerate(arrivals):
        height = PANEL_HEIGHT * number / max(arrivals)
        left = LEFT + width * 60 * minute / seconds
        drawing.bar(left, bottom - height, max(1.0, width * 60 / seconds - 1), height, "grey pale")
    for count in range(0, most + 1, max(1, most // 4)):
        y = bottom - PANEL_HEIGHT * count / most
        drawing.line([(LEFT, y), (WIDTH - RIGHT, y)], "grid")
        drawing.text(LEFT - 6, y + 4, str(count), "note end")
    for number, outcome in enumerate(outcomes):
        base = bottom - OFFSET * (number - (len(outcomes) - 1) / 2)
        points = [
            (LEFT + width * second / seconds, base - PANEL_HEIGHT * count / most)
            for second, count in enumerate(outcome.counts())
            if second % SECONDS_PER_POINT == 0
        ]
        drawing.line(points, SHOWN[outcome.policy])
    for minute in range(0, seconds // 60 + 1, 10 if seconds < LONG_S else 20):
        x = LEFT + width * 60 * minute / seconds
        drawing.text(x, bottom + 16, str(minute) if minute else "0 min", "note middle")
