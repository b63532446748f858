"""`rayinfer bench gpu`: the engine's speed relative to the GPU's roofline."""

from pathlib import Path
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line


@in_one_line
def gpu(
    output: Annotated[Path, typer.Option(help="folder for gpu.json, gpu.md and gpu.svg")] = Path(
        "kernels/benchmarks/results"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="fewer works and shapes, each once, in two minutes")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="tiny shapes, on any machine: figures mean nothing")
    ] = False,
    only: Annotated[str, typer.Option(help="some workloads, B1,B3 for example")] = "",
    minutes: Annotated[
        float | None, typer.Option(help="what does not fit is left out  [default: 8, or 2 with --quick]")
    ] = None,
) -> None:
    """The GPU's limits, and workloads beside their roofline times, with random weights in the shapes of real models."""
    from rayinfer.benchmark.gpu.suite import run_gpu_benchmark

    names = [name.strip() for name in only.split(",") if name.strip()]
    limit_s = None if minutes is None else 60 * minutes
    report = run_gpu_benchmark(output, typer.echo, is_quick=quick, is_dry_run=dry_run, only=names, limit_s=limit_s)
    if not all(check.is_right for check in report.checks):
        raise typer.Exit(1)
