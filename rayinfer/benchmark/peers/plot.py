"""The comparison as a picture: one panel of bars for each figure, drawn as SVG, readable on light and dark pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from rayinfer.benchmark.load.report import format_figure
from rayinfer.benchmark.peers.cases import FIGURES, LESS_IS_BETTER
from rayinfer.benchmark.peers.own import NAME as OWN
from rayinfer.benchmark.peers.results import Section

SHOWN = [name for name in FIGURES if not name.startswith(("ttft_p99", "stream_with"))]
COLUMNS = 3
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH, GAP = 330, 132, 52, 26
BAR_HEIGHT, BAR_STEP, TITLE_HEIGHT, TOP = 13, 19, 40, 46
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-weight: 600; } .unit, .note { fill: #59636e; } .note { font-size: 11px; }
.own { fill: #0969da; } .peer { fill: #afb8c1; } .mine { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .unit, .note { fill: #9198a1; } .own { fill: #4493f8; } .peer { fill: #59636e; }
}
"""


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    value: float

    @property
    def is_own(self) -> bool:
        return self.label.startswith(f"{OWN} ")


def svg(model: str, sections: Mapping[str, Section]) -> str:
    """Draw the medians, the best first in each panel."""
    panels = [(figure, bars) for figure in SHOWN if (bars := _bars(sections, figure))]
    parts, top = [], TOP
    for start in range(0, len(panels), COLUMNS):
        row = panels[start : start + COLUMNS]
        for column, (figure, bars) in enumerate(row):
            parts += _panel(figure, bars, column * (PANEL_WIDTH + GAP), top)
        top += TITLE_HEIGHT + max(len(bars) for _, bars in row) * BAR_STEP + GAP
    width = COLUMNS * (PANEL_WIDTH + GAP) - GAP
    title = f"{OWN} and its peers, {model}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            _text(0, 16, title, "title"),
            _text(0, 33, _note(sections), "note"),
            *parts,
            "</svg>\n",
        ]
    )


def _bars(sections: Mapping[str, Section], figure: str) -> list[_Bar]:
    bars = [
        _Bar(label, median)
        for section in sections.values()
        for label, outcome in section.outcomes.items()
        if (median := outcome.median(figure)) is not None
    ]
    return sorted(bars, key=lambda bar: bar.value, reverse=figure not in LESS_IS_BETTER)


def _panel(figure: str, bars: Sequence[_Bar], left: int, top: int) -> list[str]:
    title, unit = FIGURES[figure]
    hint = f"{unit}, less is better" if figure in LESS_IS_BETTER else unit
    parts = [_text(left, top + 14, title, "title"), _text(left, top + 29, hint, "unit note")]
    longest = max(bar.value for bar in bars) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    for number, bar in enumerate(bars):
        y = top + TITLE_HEIGHT + number * BAR_STEP
        length = max(1.0, room * bar.value / longest)
        kind, weight = ("own", "mine") if bar.is_own else ("peer", "")
        parts += [
            _text(left, y + 11, bar.label, weight),
            f'<rect class="{kind}" x="{left + LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}"/>',
            _text(left + LABEL_WIDTH + length + 5, y + 11, format_figure(_short(bar.value)), weight),
        ]
    return parts


def _short(value: float) -> float:
    return round(value) if value >= 100 else float(f"{value:.3g}")


def _note(sections: Mapping[str, Section]) -> str:
    circumstances = [
        f"{section.environment['num_cpus']} cores of {section.environment['cpu_model']}, {section.date[:10]},"
        f" commit {(section.environment['commit'] or 'unknown')[:12]}"
        for section in sections.values()
    ]
    return "; ".join(dict.fromkeys(circumstances))


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>'
