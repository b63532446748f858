"""Progress bars on standard error."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


def progress_bar(*columns: ProgressColumn, shown: bool) -> Progress:
    """Make a bar with the task's description and these columns beside it; nothing is printed unless `shown`."""
    described = (TextColumn("{task.description}"), BarColumn())
    return Progress(*described, *columns, console=Console(stderr=True), disable=not shown)
