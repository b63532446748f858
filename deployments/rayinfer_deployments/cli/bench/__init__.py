"""`rayinfer bench`: the library's benchmarks from the command line."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.bench.autoscaling import autoscaling
from rayinfer_deployments.cli.bench.gpu import gpu
from rayinfer_deployments.cli.bench.hostile import hostile
from rayinfer_deployments.cli.bench.parallel import parallel
from rayinfer_deployments.cli.bench.peers import peers
from rayinfer_deployments.cli.bench.quality import quality
from rayinfer_deployments.cli.bench.router import router
from rayinfer_deployments.cli.bench.routing import routing
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.failures import in_one_line

if TYPE_CHECKING:
    from rayinfer.benchmark.load.workloads import Workload
    from rayinfer.benchmark.offline.offline import Contender

JsonFile = Annotated[Path | None, typer.Option("--json", help="write the result to this file")]
Seed = Annotated[int, typer.Option(help="draws the prompts and lengths")]


def build_application() -> typer.Typer:
    """Put the benchmarks together."""
    application = typer.Typer(
        help="Measure the engine, its scheduler, a peer, or any OpenAI-compatible server.", no_args_is_help=True
    )
    application.command()(offline)
    application.command()(serve)
    application.command()(scheduler)
    application.command()(parallel)
    application.command()(gpu)
    application.command()(peers)
    application.command()(quality)
    application.command()(router)
    application.command()(hostile)
    application.command()(routing)
    application.command()(autoscaling)
    return application


@in_one_line
@with_engine_options
def offline(
    model: Annotated[
        str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    num_requests: Annotated[int, typer.Option(min=1, help="requests in the batch")] = 64,
    input_len: Annotated[str, typer.Option(help="prompt lengths in tokens, LOW:HIGH")] = "32:256",
    output_len: Annotated[str, typer.Option(help="answer lengths in tokens, LOW:HIGH")] = "32:256",
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(min=1, help="runs; the median counts")] = 3,
    peer: Annotated[str | None, typer.Option(help="run this one in turn on the same requests: transformers")] = None,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Throughput on a batch of random prompts, greedy, every answer as long as drawn; the prefix cache is off."""
    from rayinfer.benchmark.load.report import write_json
    from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE, offline_workload, parse_length_range
    from rayinfer.benchmark.offline.offline import print_offline_report, run_offline
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.model_config import read_model_config

    lengths = parse_length_range(input_len), parse_length_range(output_len)
    folder = resolve_model(model)
    vocab_size = min(DEFAULT_VOCAB_SIZE, read_model_config(folder).vocab_size)
    workload = offline_workload(num_requests, *lengths, vocab_size=vocab_size, seed=seed)
    console = Console()
    report = run_offline(
        model,
        engine_settings,
        workload,
        repeat=repeat,
        peer=_open_peer(peer, folder, engine_settings.get("dtype", "auto"), workload),
        console=console,
    )
    print_offline_report(report, console)
    if json_file is not None:
        write_json(report, json_file)


@in_one_line
def serve(
    base_url: Annotated[str, typer.Option(help="the server, with or without /v1")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="the model's name there")] = DEFAULT_MODEL,
    concurrency: Annotated[int, typer.Option(min=1, help="clients that each send their next request at once")] = 1,
    num_requests: Annotated[int, typer.Option(min=1, help="requests in all")] = 32,
    input_len: Annotated[str, typer.Option(help="prompt length in tokens, or LOW:HIGH")] = "128",
    output_len: Annotated[str, typer.Option(help="answer length in tokens, or LOW:HIGH")] = "64",
    request_rate: Annotated[
        float | None, typer.Option(help="requests a second at random moments (Poisson) instead of --concurrency")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="prompt tokens are drawn below this id")] = 49_000,
    seed: Seed = 0,
    api_key: Annotated[str | None, typer.Option(help="the server's key")] = None,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="a request that takes longer has failed")] = 600.0,
    json_file: JsonFile = None,
) -> None:
    """Latency and throughput of any OpenAI-compatible server under streaming load; exit code 1 if a request failed."""
    import asyncio

    from rich.progress import Progress

    from rayinfer.benchmark.load.load_client import LoadPlan, print_serving_report, run_load
    from rayinfer.benchmark.load.report import write_json
    from rayinfer.benchmark.load.workloads import parse_lengths

    plan = LoadPlan(
        base_url=base_url,
        model=model,
        num_requests=num_requests,
        input_len=parse_lengths(input_len),
        output_len=parse_lengths(output_len),
        concurrency=concurrency,
        request_rate=request_rate,
        vocab_size=vocab_size,
        seed=seed,
        api_key=api_key,
        timeout_s=timeout_s,
    )
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("requests", total=num_requests)
        report = asyncio.run(run_load(plan, on_answer=lambda: progress.advance(task)))
    print_serving_report(report, console)
    if json_file is not None:
        write_json(report, json_file)
    if report.failed:
        raise typer.Exit(1)


@in_one_line
def scheduler(
    running: Annotated[
        list[int] | None,
        typer.Option(min=1, help="running requests, once for each number to measure; 256 and 1024 unless given"),
    ] = None,
    queued: Annotated[int, typer.Option(min=0, help="requests that wait meanwhile")] = 10_000,
    num_steps: Annotated[int, typer.Option(min=2, help="steps that are timed")] = 500,
    num_requests: Annotated[
        int, typer.Option(min=0, help="short requests sent through while memory is watched; 0 for none")
    ] = 1_000_000,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Time and memory of the engine's control plane alone: planning steps, applying their tokens, adding requests."""
    from rich.progress import Progress

    from rayinfer.benchmark.control_plane.scheduler import print_scheduler_report, run_scheduler_benchmark
    from rayinfer.benchmark.load.report import write_json

    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("requests", total=num_requests)
        report = run_scheduler_benchmark(
            running=running or (256, 1024),
            num_queued=queued,
            num_steps=num_steps,
            num_requests=num_requests,
            seed=seed,
            on_progress=lambda num_ended: progress.update(task, completed=num_ended),
        )
    print_scheduler_report(report, console)
    if json_file is not None:
        write_json(report, json_file)


def _open_peer(
    name: str | None, folder: Path, dtype: str, workload: "Workload"
) -> "AbstractContextManager[Contender] | None":
    if name is None:
        return None
    from rayinfer.benchmark.offline.transformers_peer import check_peer_name, transformers_peer

    check_peer_name(name)
    return transformers_peer(folder, dtype, workload)
