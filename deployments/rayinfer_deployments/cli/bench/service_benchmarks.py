"""Benchmarks of a service: load on any server, cost of the router, and studies of routing and autoscaling."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.cli.bench.shared_options import (
    RESULTS,
    JsonFile,
    Model,
    Output,
    Seed,
    progress_count,
    progress_log,
    show,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.failures import interrupt_on_signals
from rayinfer_deployments.cluster.haproxy_files import haproxy_files
from rayinfer_deployments.cluster.profiles import Profile
from rayinfer_deployments.cluster.ray_environment import THROUGHPUT_SETTINGS, set_ray_settings

if TYPE_CHECKING:
    from rayinfer.benchmark.control_plane.overhead.router_report import ServiceCost
    from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost

SHUTDOWN_TIMEOUT_S = 30.0  # of a measured service
PAUSE_EVERY_S = 600.0  # of a trace that is replayed with pauses

Log = Callable[[str], None]


def serve(
    base_url: Annotated[str, typer.Option(help="the server, with or without /v1")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="the model's name there")] = DEFAULT_MODEL,
    concurrency: Annotated[int, typer.Option(min=1, help="clients that each send their next request at once")] = 1,
    num_requests: Annotated[int, typer.Option(min=1, help="requests in all")] = 32,
    input_len: Annotated[str, typer.Option(help="prompt length in tokens, or LOW:HIGH")] = "128",
    output_len: Annotated[str, typer.Option(help="output length in tokens, or LOW:HIGH")] = "64",
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
    from rayinfer.benchmark.load.load_client import LoadPlan, run_load
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
    with progress_count(num_requests) as on_progress:
        report = asyncio.run(run_load(plan, on_progress))
    show(report, json_file)
    if report.failed:
        raise typer.Exit(1)


def router(
    model: Annotated[
        str, typer.Option(help="whose tokenizer makes the text: folder, repository or embedded name")
    ] = DEFAULT_MODEL,
    profile: Annotated[
        str, typer.Option(help="profiles of the service, with commas between; none: decisions only")
    ] = "latency",
    waiting: Annotated[str, typer.Option(help="requests that wait, with commas between")] = "0,100,1000",
    engines: Annotated[str, typer.Option(help="engines to choose from, with commas between")] = "1,2,16",
    decisions: Annotated[int, typer.Option(min=0, help="decisions for each of these pairs; 0: services only")] = 1000,
    streams: Annotated[int, typer.Option(min=1, help="clients that read at once")] = 32,
    interval_ms: Annotated[float, typer.Option(min=0.1, help="between two tokens of a stream")] = 20.0,
    output_len: Annotated[int, typer.Option(min=2, help="tokens of an output")] = 256,
    stream_interval: Annotated[
        int | None, typer.Option(min=1, help="tokens that a stream sends at once (default: the profile's)")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="runs with all streams; the median counts")] = 3,
    output: Output = RESULTS,
) -> None:
    """Router overhead: cost of a routing decision, added time to the first token, processor time per token."""
    interrupt_on_signals()
    from rayinfer.benchmark.control_plane.overhead.router_report import RouterReport
    from rayinfer.benchmark.report import write_markdown

    profiles, pairs = _profiles(profile), [(w, e) for e in _numbers(engines, 1) for w in _numbers(waiting, 0)]
    settings = {"model": model, "num_streams": streams, "interval_s": interval_ms / 1e3}
    settings |= {"output_len": output_len, "num_runs": runs, "stream_interval": stream_interval}
    with progress_log() as log:
        report = RouterReport(
            command=typed_command(),
            decisions=_measure_decisions(model, pairs, decisions, log) if decisions else [],
            services=[_measure_in_own_process(name, settings, log) for name in profiles],
        )
    show(report, output / "router.json")
    note = f"{report.environment}: `{report.command}`"
    write_markdown(output / "router.md", "Cost of the router", report.tables(), note)
    typer.echo(f"written: {output / 'router.json'}, {output / 'router.md'}")


@with_engine_options
def routing(
    model: Model = DEFAULT_MODEL,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Priorities, tenants' shares and prefix routing on two engines of one thread each, in this process."""
    from rayinfer.benchmark.studies.routing.routing_report import run_routing_benchmark
    from rayinfer.models.checkpoints.sources import resolve_model

    folder = resolve_model(model)
    with progress_log() as log:
        report = asyncio.run(run_routing_benchmark(model, folder, on_part=log, **engine_settings))
    show(report, json_file)


def autoscaling(
    trace: Annotated[
        list[Path], typer.Argument(help="CSV files with arrived_at (s), num_prefill_tokens, num_decode_tokens")
    ],
    settings_file: Annotated[
        Path | None, typer.Option("--autoscaling", help="YAML as for `rayinfer serve --autoscaling`")
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=4, help="most engines, unless the file sets it")] = 8,
    start_s: Annotated[float, typer.Option(min=0, help="seconds until a new engine accepts requests")] = 30.0,
    prompt_rate: Annotated[float, typer.Option(min=1, help="prompt tokens that an engine computes a second")] = 5000,
    step_ms: Annotated[float, typer.Option(min=0.1, help="of an engine's step, however little it computes")] = 25.0,
    request_ms: Annotated[float, typer.Option(min=0, help="more of it for each request that gets a token")] = 0.5,
    seats: Annotated[int, typer.Option(min=1, help="requests that an engine runs at once")] = 64,
    pause_s: Annotated[
        float, typer.Option(min=0, help="replay the first trace again, with such a pause after each ten minutes")
    ] = 0.0,
    speed: Annotated[float, typer.Option(min=0.01, help="how much faster than in the trace requests arrive")] = 1.0,
    output: Output = RESULTS,
) -> None:
    """Lost requests, engine-hours and TTFT attainment: scaling by engine metrics against by ongoing requests."""
    from rayinfer.benchmark.report import write_markdown
    from rayinfer.benchmark.studies.autoscaling.figure import svg
    from rayinfer.benchmark.studies.autoscaling.policy_report import run_autoscaling_benchmark
    from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
    from rayinfer.benchmark.studies.autoscaling.trace import arrivals_by_minute, read_trace, with_pauses
    from rayinfer.routing.autoscaling_settings import autoscaling_settings
    from rayinfer_deployments.cli.control.limits import mapping_in

    given = {} if settings_file is None else mapping_in(settings_file)
    settings = autoscaling_settings({"max_replicas": max_replicas} | given)
    traces = {file.stem: read_trace(file, speed=speed) for file in trace}
    if pause_s:
        name = trace[0].stem
        traces[f"{name}, with pauses"] = with_pauses(traces[name], every_s=PAUSE_EVERY_S, pause_s=pause_s)
    pace = EnginePace(
        step_s=step_ms / 1e3,
        prompt_token_s=1 / prompt_rate,
        output_token_s=request_ms / 1e3,
        num_seats=seats,
        start_s=start_s,
    )
    with progress_log() as log:
        report = run_autoscaling_benchmark(traces, pace, settings, command=typed_command(), on_part=log)
    show(report, output / "autoscaling.json")
    figure = "![Engines over time](autoscaling.svg)"
    write_markdown(output / "autoscaling.md", "Autoscaling policies", report.tables(), figure, f"`{report.command}`")
    arrivals = {name: arrivals_by_minute(requests) for name, requests in traces.items()}
    (output / "autoscaling.svg").write_text(svg(report, arrivals))
    typer.echo(f"written: {output}/autoscaling.json, .md and .svg")


def _measure_decisions(model: str, pairs: list[tuple[int, int]], num_decisions: int, log: Log) -> "list[DecisionCost]":
    from rayinfer.benchmark.control_plane.overhead.routing_decision import measure_decisions
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.tokenization.tokenizer import Tokenizer

    tokenizer, costs = Tokenizer.from_folder(resolve_model(model)), []
    for num_waiting, num_engines in pairs:
        log(f"routing decisions: {num_waiting} waiting, {num_engines} engines")
        costs.append(measure_decisions(tokenizer, num_waiting, num_engines, num_decisions))
    return costs


def _measure_in_own_process(profile: Profile, settings: dict[str, object], log: Log) -> "ServiceCost":
    """Measure a profile in a new process: Ray reads its settings when it is imported."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_service, args=(sender, profile, settings))
    process.start()
    sender.close()
    try:
        while isinstance(message := receiver.recv(), str):
            log(message)
    except EOFError:
        raise RayinferError(f"the process that measured profile {profile} has ended without a result") from None
    except BaseException:
        process.terminate()  # it ends its service first
        raise
    finally:
        process.join(SHUTDOWN_TIMEOUT_S)
        process.kill()
    if isinstance(message, RayinferError):
        raise message
    if isinstance(message, Exception):
        raise RayinferError(
            f"profile {profile} could not be measured: {type(message).__name__}: {message}"
        ) from message
    cost: ServiceCost = message
    return cost


def _measure_service(sender: Connection, profile: Profile, settings: dict[str, object]) -> None:
    interrupt_on_signals()
    try:
        with _ray_settings(profile):
            # After the environment is set: these import Ray, which reads it.
            from rayinfer_deployments.overhead.measured_service import ServicePlan, measure_service

            plan = ServicePlan(with_proxy=profile == Profile.THROUGHPUT, **settings)  # type: ignore[arg-type]
            sender.send(measure_service(profile, plan, sender.send))
    except Exception as error:
        sender.send(error)
    except KeyboardInterrupt:
        pass


@contextlib.contextmanager
def _ray_settings(profile: Profile) -> Iterator[None]:
    """Set this process's environment as `rayinfer serve --profile` does."""
    with contextlib.ExitStack() as files:
        has_haproxy = profile == Profile.THROUGHPUT
        more = THROUGHPUT_SETTINGS | files.enter_context(haproxy_files()) if has_haproxy else {}
        set_ray_settings(owns_ray=True, more=more)
        yield


def _profiles(text: str) -> list[Profile]:
    try:
        return [Profile(name) for name in split_names(text) if name != "none"]
    except ValueError:
        raise ConfigError(f"expected profiles out of {', '.join(Profile)}, or none, got {text!r}") from None


def _numbers(text: str, least: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"expected whole numbers with commas between, got {text!r}") from None
    if min(numbers) < least:
        raise ConfigError(f"expected numbers of at least {least}, got {text!r}")
    return numbers
