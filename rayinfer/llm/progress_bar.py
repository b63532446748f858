"""The progress bar of `LLM.generate`, on standard error."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bar(shown: bool) -> Progress:
    """Make a bar whose tasks have a field `speed`, in tokens per second; nothing is printed unless `shown`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]:.0f} tokens/s"),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not shown)
