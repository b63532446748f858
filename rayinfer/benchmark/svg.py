"""Small SVG writer, for figures that are readable on light and dark pages."""

from collections.abc import Iterable
from html import escape

FONT = '12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
# By class: the colors on light and on dark pages.
COLORS = {
    "ink": ("#1f2328", "#f0f6fc"),
    "note": ("#59636e", "#9198a1"),
    "grey": ("#afb8c1", "#59636e"),
    "track": ("#eaeef2", "#21262d"),
    "grid": ("#d1d9e0", "#3d444d"),
    "blue": ("#0969da", "#4493f8"),
    "red": ("#cf222e", "#f85149"),
    "brown": ("#9a6700", "#d29922"),
    "green": ("#1a7f37", "#3fb950"),
}


class Drawing:
    """Shapes of one figure; `kind` names a color, and a text's weight, size or anchor."""

    def __init__(self, width: int, title: str) -> None:
        self._width, self._title = width, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Add text whose baseline begins at (x, y)."""
        self._parts.append(f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(text)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Add a filled rectangle."""
        self._parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Add a line through points."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" points="{joined}"/>')

    def markup(self, height: int) -> str:
        """Return the figure as SVG of this height."""
        size = f'width="{self._width}" height="{height}" viewBox="0 0 {self._width} {height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
                f"<title>{escape(self._title)}</title>",
                f"<style>{_style()}</style>",
                *self._parts,
                "</svg>\n",
            ]
        )


def _style() -> str:
    def colors(page: int) -> str:
        return f"text {{ fill: {COLORS['ink'][page]}; }} " + "".join(
            f".{name} {{ fill: {shades[page]}; }} polyline.{name} {{ stroke: {shades[page]}; }} "
            for name, shades in COLORS.items()
        )

    return f"""
text {{ font: {FONT}; }} text.title {{ font-weight: 600; }} text.note {{ font-size: 11px; }}
text.middle {{ text-anchor: middle; }} text.end {{ text-anchor: end; }} .pale {{ opacity: 0.45; }}
{colors(0)}
polyline {{ fill: none !important; stroke-width: 1.6; }} polyline.grid {{ stroke-width: 1; }}
@media (prefers-color-scheme: dark) {{ {colors(1)} }}
"""
