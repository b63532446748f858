"""`rayinfer bench routing`: the effect of the router's priorities, fair sharing and prefix routing."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.failures import in_one_line


@in_one_line
@with_engine_options
def routing(
    model: Annotated[
        str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result to this file")] = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Priorities, tenants' shares and prefix routing on two engines of one thread each, in this process."""
    import asyncio

    from rayinfer.benchmark.load.report import write_json
    from rayinfer.benchmark.studies.routing.report import print_routing_report, run_routing_benchmark
    from rayinfer.models.checkpoints.sources import resolve_model

    console = Console()
    with console.status("starting") as status:
        report = asyncio.run(
            run_routing_benchmark(model, resolve_model(model), on_part=status.update, **engine_settings)
        )
    print_routing_report(report, console)
    if json_file is not None:
        write_json(report, json_file)
