"""`rayinfer merge`: a checkpoint with a LoRA adapter merged into its weights."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line

GIGABYTE = 1e9


@in_one_line
def merge(
    base: Annotated[str, typer.Argument(help="model: folder, Hugging Face repository or embedded name")],
    adapter: Annotated[Path, typer.Argument(help="folder of the adapter, as PEFT saved it")],
    output: Annotated[Path, typer.Argument(help="folder to write")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a model folder that is there")] = False,
) -> None:
    """Write a model with a LoRA adapter merged into its weights: a checkpoint like the base's, in its types.

    The adapter is checked as for serving. Files are written in turn, with some megabytes of a matrix in memory.
    """
    from rich.progress import DownloadColumn, TimeRemainingColumn

    from rayinfer.adapters.merged_checkpoint import merge_adapter
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.progress_bar import progress_bar

    if Path(base).suffix == ".gguf":
        raise ConfigError(f"{base} is quantized (GGUF): merge into the checkpoint it was made from")
    folder = resolve_model(base)
    with progress_bar(DownloadColumn(), TimeRemainingColumn(), shown=sys.stderr.isatty()) as bar:
        task = bar.add_task("merging", total=None)
        report = merge_adapter(
            folder,
            adapter,
            output,
            overwrite=overwrite,
            on_start=lambda num_bytes: bar.update(task, total=num_bytes),
            on_progress=lambda num_bytes: bar.advance(task, num_bytes),
        )
    typer.echo(
        f"{report.folder}: {report.num_merged} tensors changed by rank {report.rank} at most,"
        f" {report.num_bytes / GIGABYTE:.2f} GB: rayinfer serve {report.folder}"
    )
