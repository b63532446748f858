"""`rayinfer bench parallel`: the overhead of tensor and pipeline parallelism."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.failures import in_one_line


@in_one_line
@with_engine_options
def parallel(
    model: Annotated[
        str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="ranks that share every layer")] = 2,
    pipeline_parallel_size: Annotated[int, typer.Option(min=1, help="stages that share the layers out")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="requests that decode at once")] = 8,
    num_steps: Annotated[int, typer.Option(min=2, help="steps that are timed")] = 50,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result to this file")] = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Decoding on one rank, over tensor ranks alone and over stages alone; and the control plane without a model."""
    from rayinfer.benchmark.control_plane.parallel import print_parallel_report, run_parallel_benchmark
    from rayinfer.benchmark.load.report import write_json
    from rayinfer.models.checkpoints.sources import resolve_model

    sizes = sorted({(1, 1), (tensor_parallel_size, 1), (1, pipeline_parallel_size)})
    console = Console()
    report = run_parallel_benchmark(
        model, resolve_model(model), sizes, batch=batch, num_steps=num_steps, **engine_settings
    )
    print_parallel_report(report, console)
    if json_file is not None:
        write_json(report, json_file)
