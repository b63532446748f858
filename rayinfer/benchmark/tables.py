"""Tables of results for a terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from rayinfer.benchmark.load.report import Percentiles, format_figure


def print_rows(title: str, rows: Mapping[str, object], console: Console) -> None:
    """Show named figures, one a line."""
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, format_figure(value))
    console.print(table)


def print_percentiles(title: str, rows: Mapping[str, Percentiles | None], console: Console) -> None:
    """Show spreads in milliseconds, one a line; what was not seen is left out."""
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table("ms", "mean", "p50", "p95", "p99", "max", "samples")
    for name, spread in rows.items():
        if spread is not None:
            figures = (spread.mean, spread.p50, spread.p95, spread.p99, spread.max, spread.count)
            table.add_row(name, *map(format_figure, figures))
    console.print(table)
