"""The result of `rayinfer bench quality` on a terminal."""

from rich.console import Console
from rich.table import Table

from rayinfer.benchmark.studies.quality.quality import QualityReport, table_rows


def print_quality_report(report: QualityReport, console: Console) -> None:
    """Show the result."""
    table = Table("mode", "perplexity", "above float32", "allowed", "same choice as float32", title=report.model)
    for row in table_rows(report):
        table.add_row(*row)
    console.print(table)
    console.print(f"weights: {report.weights}; text: {report.text}, {report.num_predicted:,} tokens", markup=False)
