"""Benchmarks of a service: load on any server, cost of the router, and hostile requests."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.cli.bench.shared_options import (
    RESULTS,
    JsonFile,
    Output,
    Seed,
    progress_count,
    progress_log,
    show,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.failures import interrupt_on_signals
from rayinfer_deployments.cluster.haproxy_files import haproxy_files
from rayinfer_deployments.cluster.ray_environment import THROUGHPUT_SETTINGS, Profile, set_ray_settings

if TYPE_CHECKING:
    from rayinfer.benchmark.control_plane.overhead.router_report import ServiceCost
    from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost
    from rayinfer.benchmark.load.batch_effect import BatchEffectReport

SHUTDOWN_TIMEOUT_S = 30.0  # of a measured service

Log = Callable[[str], None]
Choice = TypeVar("Choice", bound=StrEnum)


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
    variants: Annotated[
        str, typer.Option(help="clients' protocols, and services with keys, with commas between: measured in turns")
    ] = "sse,sse-keys,grpc,grpc-keys",
    runs: Annotated[int, typer.Option(min=1, help="runs with all streams; the median counts")] = 3,
    output: Output = RESULTS,
) -> None:
    """Router overhead: cost of a routing decision, added time to the first token, processor time per token."""
    interrupt_on_signals()
    from rayinfer.benchmark.control_plane.overhead.router_report import RouterReport, Variant
    from rayinfer.benchmark.report import write_markdown

    profiles = _chosen(Profile, "profiles", "" if profile == "none" else profile)
    pairs = [(w, e) for e in _numbers(engines, 1) for w in _numbers(waiting, 0)]
    settings = {"model": model, "num_streams": streams, "interval_s": interval_ms / 1e3}
    settings |= {"output_len": output_len, "num_runs": runs, "stream_interval": stream_interval}
    settings["variants"] = _chosen(Variant, "variants", variants)
    with progress_log() as log:
        report = RouterReport(
            command=typed_command(),
            decisions=_measure_decisions(model, pairs, decisions, log) if decisions else [],
            services=[cost for name in profiles for cost in _measure_in_own_process(name, settings, log)],
        )
    show(report, output / "router.json")
    note = f"{report.environment}: `{report.command}`"
    write_markdown(output / "router.md", "Cost of the router", report.tables(), note)
    typer.echo(f"written: {output / 'router.json'}, {output / 'router.md'}")


def hostile(
    base_url: Annotated[
        str | None, typer.Option(help="a running service (default: one of its own, with an engine that has no model)")
    ] = None,
    model: Annotated[
        str, typer.Option(help="the model's name there, else the model whose tokenizer makes the text")
    ] = DEFAULT_MODEL,
    kinds: Annotated[str, typer.Option(help="kinds of requests, with commas between (default: each, and all)")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="rounds; each has all kinds, and a quiet phase")] = 5,
    seconds: Annotated[float, typer.Option(min=1.0, help="of each kind in a round")] = 4.0,
    interval_ms: Annotated[float, typer.Option(min=0.1, help="between two tokens of an engine without a model")] = 20.0,
    limit_ms: Annotated[float, typer.Option(min=0.0, help="allowed increase of the stream's p99")] = 20.0,
    json_file: JsonFile = None,
) -> None:
    """Gaps between one stream's tokens beside hostile requests; exit code 1 if a kind moves their p99 too far."""
    interrupt_on_signals()
    from rayinfer.benchmark.control_plane.overhead.hostile_load import HostilePlan, measure_hostile_load
    from rayinfer.benchmark.control_plane.overhead.hostile_requests import hostile_kinds

    chosen, known = split_names(kinds), hostile_kinds()
    if wrong := [kind for kind in chosen if kind not in known]:
        raise ConfigError(f"expected kinds out of {', '.join(known)}, got {', '.join(wrong)}")
    with _hostile_target(base_url, model, interval_ms) as (url, name), progress_log() as log:
        plan = HostilePlan(base_url=url, model=name, kinds=chosen, num_rounds=rounds, phase_s=seconds)
        report = measure_hostile_load(plan, typed_command(), log)
    show(report, json_file)
    if any(result.moved_ms > limit_ms for result in report.results):
        raise typer.Exit(1)


def batches(
    base_url: Annotated[str, typer.Option(help="a running service with batches")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="the model's name there")] = DEFAULT_MODEL,
    rounds: Annotated[int, typer.Option(min=1, help="rounds, each without the batch and then beside it")] = 3,
    num_requests: Annotated[int, typer.Option(min=1, help="interactive requests in each phase of a round")] = 20,
    input_len: Annotated[str, typer.Option(help="their prompts in tokens, or LOW:HIGH")] = "128",
    output_len: Annotated[str, typer.Option(help="their outputs in tokens, or LOW:HIGH")] = "4",
    rows: Annotated[int, typer.Option(min=1, help="rows of a batch: more than are computed meanwhile")] = 2000,
    row_input_len: Annotated[str, typer.Option(help="their prompts in tokens, or LOW:HIGH")] = "32:256",
    row_output_len: Annotated[str, typer.Option(help="their outputs in tokens, or LOW:HIGH")] = "32:256",
    max_steps: Annotated[float, typer.Option(min=0.0, help="allowed increase of the p95, in steps")] = 1.0,
    seed: Seed = 0,
    api_key: Annotated[str | None, typer.Option(help="the service's key")] = None,
    output: Output = RESULTS,
) -> None:
    """First tokens of interactive requests beside a full batch; exit code 1 if it delays their p95 by over a step."""
    interrupt_on_signals()
    from rayinfer.benchmark.load.batch_effect import BatchEffectPlan, measure_batch_effect
    from rayinfer.benchmark.load.workloads import parse_lengths

    plan = BatchEffectPlan(
        base_url=base_url,
        model=model,
        num_rounds=rounds,
        num_requests=num_requests,
        input_len=parse_lengths(input_len),
        output_len=parse_lengths(output_len),
        num_rows=rows,
        row_input_len=parse_lengths(row_input_len),
        row_output_len=parse_lengths(row_output_len),
        seed=seed,
        api_key=api_key,
    )
    with progress_log(keeps_lines=True) as log:
        report = asyncio.run(measure_batch_effect(plan, typed_command(), log, partial(_write_batch_effect, output)))
    show(report)
    typer.echo(f"written: {output / 'batches.json'}, {output / 'batches.md'}")
    if report.added_steps > max_steps:
        raise typer.Exit(1)


def _write_batch_effect(output: Path, report: "BatchEffectReport") -> None:
    from rayinfer.benchmark.report import write_json, write_markdown

    write_json(report, output / "batches.json")
    note = f"{report.environment}: `{report.command}`"
    write_markdown(output / "batches.md", "Interactive requests beside a full batch", report.tables(), note)


@contextlib.contextmanager
def _hostile_target(base_url: str | None, model: str, interval_ms: float) -> Iterator[tuple[str, str]]:
    """Return URL and model of a running service, or of one with an engine without a model."""
    if base_url is not None:
        yield base_url, model
        return
    set_ray_settings(owns_ray=True)
    # After the environment is set: these import Ray, which reads it.
    from rayinfer_deployments.overhead.paced_service import MODEL, ServicePlan, paced_service

    plan = ServicePlan(model=model, with_proxy=False, interval_s=interval_ms / 1e3)
    with paced_service(Profile.LATENCY, plan) as service:
        yield service.url, MODEL


def _measure_decisions(model: str, pairs: list[tuple[int, int]], num_decisions: int, log: Log) -> "list[DecisionCost]":
    from rayinfer.benchmark.control_plane.overhead.routing_decision import measure_decisions
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.tokenization.tokenizer import Tokenizer

    tokenizer, costs = Tokenizer.from_folder(resolve_model(model)), []
    for num_waiting, num_engines in pairs:
        log(f"routing decisions: {num_waiting} waiting, {num_engines} engines")
        costs.append(measure_decisions(tokenizer, num_waiting, num_engines, num_decisions))
    return costs


def _measure_in_own_process(profile: Profile, settings: dict[str, object], log: Log) -> "list[ServiceCost]":
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
    costs: list[ServiceCost] = message
    return costs


def _measure_service(sender: Connection, profile: Profile, settings: dict[str, object]) -> None:
    interrupt_on_signals()
    try:
        with _ray_settings(profile):
            # After the environment is set: these import Ray, which reads it.
            from rayinfer_deployments.overhead.measured_service import measure_service
            from rayinfer_deployments.overhead.paced_service import ServicePlan

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


def _chosen(kind: type[Choice], what: str, text: str) -> list[Choice]:
    try:
        return [kind(name) for name in split_names(text)]
    except ValueError:
        raise ConfigError(f"expected {what} out of {', '.join(kind)}, got {text!r}") from None


def _numbers(text: str, least: int) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"expected whole numbers with commas between, got {text!r}") from None
    if min(numbers) < least:
        raise ConfigError(f"expected numbers of at least {least}, got {text!r}")
    return numbers
