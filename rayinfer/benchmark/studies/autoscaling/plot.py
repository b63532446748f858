"""Engines over time as a picture: a panel for each trace, drawn as SVG, readable on light and dark pages."""

from collections.abc import Sequence
from html import escape

from rayinfer.benchmark.studies.autoscaling.report import OWN, TO_NONE, AutoscalingReport, PolicyOutcome

WIDTH, PANEL_HEIGHT, LEFT, RIGHT, GAP, TOP = 900, 170, 24, 16, 74, 40
LETTER, LEGEND_SPACE = 5.6, 14  # widths, in the legend
BESIDE = 2.0  # how far lines lie apart that stand for the same number
SECONDS_PER_POINT = 10
LONG_S = 7200  # above it, fewer minutes are marked
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-weight: 600; } .note { fill: #59636e; font-size: 11px; }
polyline { fill: none; stroke-width: 1.6; } .grid { stroke: #d1d9e0; stroke-width: 1; }
.arrivals { fill: #afb8c1; opacity: 0.45; }
.own { stroke: #0969da; stroke-width: 2.4; }
.plain { stroke: #cf222e; } .tuned { stroke: #9a6700; } .none { stroke: #1a7f37; stroke-width: 2; }
.own-text { fill: #0969da; } .plain-text { fill: #cf222e; } .tuned-text { fill: #9a6700; } .none-text { fill: #1a7f37; }
.tick { text-anchor: middle; } .count { text-anchor: end; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .note { fill: #9198a1; } .grid { stroke: #3d444d; } .arrivals { fill: #59636e; }
  .own { stroke: #4493f8; } .plain { stroke: #f85149; } .tuned { stroke: #d29922; } .none { stroke: #3fb950; }
  .own-text { fill: #4493f8; } .plain-text { fill: #f85149; } .tuned-text { fill: #d29922; }
  .none-text { fill: #3fb950; }
}
"""
SHOWN = {"ongoing requests, 2 each": "plain", "ongoing requests, 16 each": "tuned", TO_NONE: "none", OWN: "own"}


def svg(report: AutoscalingReport, arrivals: dict[str, list[int]]) -> str:
    """Draw how many engines policies hold; `arrivals` has the requests of each trace, minute by minute."""
    traces = list(dict.fromkeys(outcome.trace for outcome in report.outcomes))
    height = TOP + len(traces) * (PANEL_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{STYLE}</style>",
        _text(0, 16, "Engines held over time; grey: requests that came in a minute", "title"),
        _text(0, 32, _note(report), "note"),
    ]
    for number, trace in enumerate(traces):
        outcomes = [outcome for outcome in report.outcomes if outcome.trace == trace and outcome.policy in SHOWN]
        parts += _panel(trace, outcomes, arrivals[trace], TOP + number * (PANEL_HEIGHT + GAP) + 42)
    return "\n".join([*parts, "</svg>\n"])


def _panel(trace: str, outcomes: Sequence[PolicyOutcome], arrivals: Sequence[int], top: int) -> list[str]:
    seconds = max(outcome.seconds for outcome in outcomes)
    most = max(outcome.most_engines for outcome in outcomes)
    room = WIDTH - LEFT - RIGHT
    parts, legend_left = [_text(0, top - 26, trace, "title")], 0.0
    for outcome in outcomes:
        policy = outcome.policy.replace("ongoing requests", "ongoing")
        words = f"{policy}: {outcome.attainment:.1%}, {outcome.engine_hours:.2f} h"
        parts.append(_text(legend_left, top - 9, words, f"note {SHOWN[outcome.policy]}-text"))
        legend_left += LETTER * len(words) + LEGEND_SPACE
    for minute, number in enumerate(arrivals):
        bar = PANEL_HEIGHT * number / max(arrivals)
        left, width = LEFT + room * 60 * minute / seconds, max(1.0, room * 60 / seconds - 1)
        parts.append(
            f'<rect class="arrivals" x="{left:.1f}" y="{top + PANEL_HEIGHT - bar:.1f}" width="{width:.1f}" '
            f'height="{bar:.1f}"/>'
        )
    for count in range(0, most + 1, max(1, most // 4)):
        y = top + PANEL_HEIGHT * (1 - count / most)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, str(count), "note count"))
    for number, outcome in enumerate(outcomes):
        bottom = top + PANEL_HEIGHT - BESIDE * (number - (len(outcomes) - 1) / 2)
        points = [
            f"{LEFT + room * second / seconds:.1f},{bottom - PANEL_HEIGHT * count / most:.1f}"
            for second, count in enumerate(outcome.counts())
            if second % SECONDS_PER_POINT == 0
        ]
        parts.append(f'<polyline class="{SHOWN[outcome.policy]}" points="{" ".join(points)}"/>')
    for minute in range(0, seconds // 60 + 1, 10 if seconds < LONG_S else 20):
        x = LEFT + room * 60 * minute / seconds
        parts.append(_text(x, top + PANEL_HEIGHT + 16, str(minute) if minute else "0 min", "note tick"))
    return parts


def _note(report: AutoscalingReport) -> str:
    start_s, most = report.pace.start_s, report.settings["max_replicas"]
    return f"{start_s:g} s to start an engine, at most {most}; with each policy first tokens in time, and engine-hours"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'
