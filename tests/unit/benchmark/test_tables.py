import io

from rich.console import Console

from rayinfer.benchmark.load.report import percentiles
from rayinfer.benchmark.tables import print_percentiles, print_rows


def test_tables_show_every_row_that_was_measured():
    console = Console(file=io.StringIO(), width=120)
    print_rows("title", {"requests": 64}, console)
    print_percentiles("latency", {"first token": percentiles([0.5]), "inter-token": None}, console)
    shown = console.file.getvalue()
    assert "requests" in shown
    assert "64" in shown
    assert "first token" in shown
    assert "500" in shown
    assert "inter-token" not in shown
