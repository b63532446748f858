"""`rayinfer bench router`: the control plane between engines and clients, with engines that have no model."""

import contextlib
import multiprocessing
import shlex
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.cli.failures import in_one_line, interrupt_on_signals
from rayinfer_deployments.cluster.haproxy_files import haproxy_files
from rayinfer_deployments.cluster.ray_environment import THROUGHPUT_SETTINGS, Profile, set_ray_settings

if TYPE_CHECKING:
    from rayinfer.benchmark.control_plane.overhead.results import ServiceCost
    from rayinfer.benchmark.control_plane.overhead.routing_decision import DecisionCost

RESULTS = Path("kernels/benchmarks/results")
END_WITHIN_S = 30.0  # what a service may take to end

Tell = Callable[[str], None]


@in_one_line
def router(
    model: Annotated[
        str, typer.Option(help="whose tokenizer makes the text: folder, repository or embedded name")
    ] = DEFAULT_MODEL,
    profile: Annotated[
        str, typer.Option(help="the service's settings, with commas between; none: decisions only")
    ] = "latency",
    waiting: Annotated[str, typer.Option(help="requests that wait, with commas between")] = "0,100,1000",
    engines: Annotated[str, typer.Option(help="engines to choose from, with commas between")] = "1,2,16",
    decisions: Annotated[int, typer.Option(min=0, help="decisions for each of these pairs; 0: services only")] = 1000,
    streams: Annotated[int, typer.Option(min=1, help="clients that read at once")] = 32,
    interval_ms: Annotated[float, typer.Option(min=0.1, help="between two tokens of a stream")] = 20.0,
    output_len: Annotated[int, typer.Option(min=2, help="tokens of an answer")] = 256,
    stream_interval: Annotated[
        int | None, typer.Option(min=1, help="tokens that a stream sends at once (default: the profile's)")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="runs with all streams; the median counts")] = 3,
    output: Annotated[Path, typer.Option(help="folder for the JSON file and the tables")] = RESULTS,
) -> None:
    """Router overhead: cost of a routing decision, added time to the first token, processor time per token."""
    interrupt_on_signals()
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from rayinfer.benchmark.control_plane.overhead.results import RouterReport, print_router_report, write_markdown
    from rayinfer.benchmark.load.report import write_json

    profiles, pairs = _profiles(profile), [(w, e) for e in _numbers(engines, 1) for w in _numbers(waiting, 0)]
    settings = {"model": model, "num_streams": streams, "interval_s": interval_ms / 1e3}
    settings |= {"output_len": output_len, "num_runs": runs, "stream_interval": stream_interval}
    console = Console()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task("routing decisions")

        def tell(text: str) -> None:
            progress.update(task, description=text)

        report = RouterReport(
            command=shlex.join(["rayinfer", *sys.argv[1:]]),
            decisions=_measure_decisions(model, pairs, decisions, tell) if decisions else [],
            services=[_measure_in_own_process(name, settings, tell) for name in profiles],
        )
    print_router_report(report, console)
    write_json(report, output / "router.json")
    write_markdown(report, output / "router.md")
    console.print(f"written: {output / 'router.json'}, {output / 'router.md'}", soft_wrap=True)


def _measure_decisions(
    model: str, pairs: list[tuple[int, int]], num_decisions: int, tell: Tell
) -> "list[DecisionCost]":
    from rayinfer.benchmark.control_plane.overhead.routing_decision import measure_decisions
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.tokenization.tokenizer import Tokenizer

    tokenizer, costs = Tokenizer.from_folder(resolve_model(model)), []
    for num_waiting, num_engines in pairs:
        tell(f"routing decisions: {num_waiting} waiting, {num_engines} engines")
        costs.append(measure_decisions(tokenizer, num_waiting, num_engines, num_decisions))
    return costs


def _measure_in_own_process(profile: Profile, settings: dict[str, object], tell: Tell) -> "ServiceCost":
    """Measure a profile in a new process: Ray reads its settings when it is imported."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measure_service, args=(there, profile, settings))
    process.start()
    there.close()
    try:
        while isinstance(word := here.recv(), str):
            tell(word)
    except EOFError:
        raise RayinferError(f"the process that measured profile {profile} has ended without a result") from None
    except BaseException:
        process.terminate()  # it ends its service first
        raise
    finally:
        process.join(END_WITHIN_S)
        process.kill()  # of one that has ended nothing is left to kill
    if isinstance(word, RayinferError):
        raise word
    if isinstance(word, Exception):
        raise RayinferError(f"profile {profile} could not be measured: {type(word).__name__}: {word}") from word
    cost: ServiceCost = word
    return cost


def _measure_service(answer: Connection, profile: Profile, settings: dict[str, object]) -> None:
    interrupt_on_signals()
    try:
        with _ray_settings(profile):
            # After the environment is set: these import Ray, which reads it.
            from rayinfer_deployments.overhead.measured_service import ServicePlan, measure_service

            plan = ServicePlan(with_proxy=profile == Profile.THROUGHPUT, **settings)  # type: ignore[arg-type]
            answer.send(measure_service(profile, plan, answer.send))
    except Exception as error:
        answer.send(error)
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
    names = [part.strip() for part in text.split(",") if part.strip() not in ("", "none")]
    try:
        return [Profile(name) for name in names]
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
