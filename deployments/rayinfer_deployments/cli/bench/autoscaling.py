"""`rayinfer bench autoscaling`: comparison of autoscaling policies, simulated over request traces."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rayinfer_deployments.cli.failures import in_one_line

RESULTS = Path("kernels/benchmarks/results")
EVERY_S = 600.0  # between two pauses


@in_one_line
def autoscaling(
    trace: Annotated[
        list[Path],
        typer.Argument(
            help="CSV with arrived_at (s), num_prefill_tokens, num_decode_tokens; more than one may be given"
        ),
    ],
    settings_file: Annotated[
        Path | None, typer.Option("--autoscaling", help="YAML as for `rayinfer serve --autoscaling`")
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=4, help="most engines, where the file does not say")] = 8,
    start_s: Annotated[float, typer.Option(min=0, help="seconds until a new engine takes requests")] = 30.0,
    prompt_rate: Annotated[
        float, typer.Option(min=1, help="tokens of prompts that an engine computes a second")
    ] = 5000,
    step_ms: Annotated[float, typer.Option(min=0.1, help="of an engine's step, however little it computes")] = 25.0,
    request_ms: Annotated[float, typer.Option(min=0, help="more of it for each request that gets a token")] = 0.5,
    seats: Annotated[int, typer.Option(min=1, help="requests that an engine runs at once")] = 64,
    pause_s: Annotated[
        float, typer.Option(min=0, help="replay the first trace again, with so long a pause after each ten minutes")
    ] = 0.0,
    speed: Annotated[float, typer.Option(min=0.01, help="how much faster than in the trace the requests come")] = 1.0,
    output: Annotated[Path, typer.Option(help="folder for the JSON file, the table and the picture")] = RESULTS,
) -> None:
    """Lost requests, engine-hours and TTFT attainment: scaling by engine metrics against by ongoing requests."""
    from rayinfer.benchmark.load.report import write_json
    from rayinfer.benchmark.studies.autoscaling.plot import svg
    from rayinfer.benchmark.studies.autoscaling.report import (
        print_autoscaling_report,
        run_autoscaling_benchmark,
        write_markdown,
    )
    from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
    from rayinfer.benchmark.studies.autoscaling.trace import arrivals_by_minute, read_trace, with_pauses
    from rayinfer.routing.autoscaling_settings import autoscaling_settings
    from rayinfer_deployments.cli.control.limits import mapping_in

    given = {} if settings_file is None else mapping_in(settings_file)
    settings = autoscaling_settings({"max_replicas": max_replicas} | given)
    traces = {file.stem: read_trace(file, speed=speed) for file in trace}
    if pause_s:
        name = trace[0].stem
        traces[f"{name}, with pauses"] = with_pauses(traces[name], every_s=EVERY_S, pause_s=pause_s)
    pace = EnginePace(
        step_s=step_ms / 1e3,
        prompt_token_s=1 / prompt_rate,
        output_token_s=request_ms / 1e3,
        num_seats=seats,
        start_s=start_s,
    )
    console = Console()
    command = shlex.join(["rayinfer", *sys.argv[1:]])
    with console.status("reading") as status:
        report = run_autoscaling_benchmark(traces, pace, settings, command=command, on_part=status.update)
    print_autoscaling_report(report, console)
    write_json(report, output / "autoscaling.json")
    write_markdown(report, output / "autoscaling.md", "autoscaling.svg")
    arrivals = {name: arrivals_by_minute(requests) for name, requests in traces.items()}
    (output / "autoscaling.svg").write_text(svg(report, arrivals))
    console.print(f"written: {output}/autoscaling.json, .md and .svg", soft_wrap=True)
