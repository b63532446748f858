"""`rayinfer batch`: a model over a file of rows, resumable, and the state of such jobs."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError, shown
from rayinfer_deployments.cli.failures import INTERRUPTED, in_one_line
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cli.options.sampling_options import with_sampling_options

if TYPE_CHECKING:
    from rayinfer.jobs.batch_job import BatchJob
    from rayinfer.jobs.inference import Inference, JobResult

CANCELLED = 3
ALREADY_RUNS = 75  # EX_TEMPFAIL: try again later

OutputArgument = Annotated[str, typer.Argument(help="the job's output, or its YAML file")]
ProgressOption = Annotated[
    str | None, typer.Option(help="folder or URL of the job's progress (default: OUTPUT.progress)")
]


def build_application() -> typer.Typer:
    """Put the commands together."""
    application = typer.Typer(
        help="Run a model over a file of rows; a job that was killed goes on where it was.", no_args_is_help=True
    )
    for command in (run, status, cancel, verify):
        application.command()(command)
    return application


@in_one_line
@with_engine_options
@with_sampling_options()
def run(
    job: Annotated[
        str,
        typer.Argument(metavar="INPUT|JOB.yaml", help="file, folder or URL of the rows; or a YAML file of settings"),
    ],
    output: Annotated[
        str | None, typer.Argument(metavar="OUTPUT", help="a .jsonl, .parquet or .sqlite path, or a folder")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"folder, GGUF file, hub repository or embedded name (default: {DEFAULT_MODEL})")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="engines; several are Ray actors, one runs in this process (default: 1)")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster for several workers: HOST:PORT or auto (default: a Ray of its own)")
    ] = None,
    input_format: Annotated[
        str | None, typer.Option(help="jsonl, openai, csv, tsv, text, parquet, arrow, images")
    ] = None,
    output_format: Annotated[str | None, typer.Option(help="jsonl, parquet or sqlite")] = None,
    output_shape: Annotated[str | None, typer.Option(help="columns, or openai as its batches (default: input)")] = None,
    split: Annotated[str | None, typer.Option(help="part of a data set's folder")] = None,
    id_column: Annotated[str | None, typer.Option(help="column of the rows' ids")] = None,
    prompt_column: Annotated[str | None, typer.Option(help="column of the prompts")] = None,
    prompt_template: Annotated[str | None, typer.Option(help='prompt with columns, as "Summarize: {text}"')] = None,
    chat: Annotated[bool | None, typer.Option("--chat", help="prompts are messages of a user")] = None,
    system: Annotated[str | None, typer.Option(help="instructions before each prompt; implies --chat")] = None,
    task: Annotated[str | None, typer.Option(help="of a model that does not generate: embed, classify, score")] = None,
    top_k_labels: Annotated[int | None, typer.Option(min=1, help="labels of a classifier (default: all)")] = None,
    dimensions: Annotated[int | None, typer.Option(min=1, help="to which embeddings are cut")] = None,
    keep_columns: Annotated[
        bool | None, typer.Option("--keep-columns/--only-output", help="write the input's columns too (default: on)")
    ] = None,
    max_errors: Annotated[
        str | None, typer.Option(help="rows with errors, or their share, beyond which the job ends (default: 99%)")
    ] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(help="between two checkpoints (default: 10)")] = None,
    checkpoint_rows: Annotated[int | None, typer.Option(help="between two checkpoints (default: 10000)")] = None,
    traces_dir: Annotated[Path | None, typer.Option(help="folder for profiler traces of some steps")] = None,
    progress: ProgressOption = None,
    force_config: Annotated[
        bool | None, typer.Option("--force-config", help="go on with a job of another configuration or input")
    ] = None,
    sampling: dict[str, Any] = {},  # noqa: B006 - filled by with_sampling_options
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Run a model over rows; started again after a kill, a job goes on, and its output is the same to the byte."""
    given = {name: value for name, value in locals().items() if name in _SAME_NAMES and value is not None}
    settings = _settings(job, output) | given
    # `--seed` is the base of all rows' seeds: with one seed for all, equal prompts would have equal answers.
    base_seed = sampling.pop("seed", None)
    _put(settings, "sampling", sampling)
    _put(settings, "engine", engine_settings)
    parameters = settings["parameters"] = _section(settings, "parameters")
    _put(parameters, "checkpointing", _given({"period_s": checkpoint_seconds, "period_rows": checkpoint_rows}))
    profiling = None if traces_dir is None else {"traces_dir": traces_dir}
    parameters |= _given({"base_seed": base_seed, "max_errors": max_errors, "profiling": profiling})
    with _exit_codes():
        _run(settings, address)


def status(
    job: OutputArgument,
    progress: ProgressOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts: one object")] = False,
) -> None:
    """Show how far a job is; exit code 0 if it is complete or runs, else 1."""
    in_one_line(_status)(job, progress, as_json)


def cancel(job: OutputArgument, progress: ProgressOption = None) -> None:
    """Ask a running job to stop at a checkpoint; the same `run` goes on from there."""
    in_one_line(_cancel)(job, progress)


def verify(
    job: Annotated[str, typer.Argument(metavar="INPUT|JOB.yaml", help="the job's input, or its YAML file")],
    output: Annotated[str | None, typer.Argument(metavar="OUTPUT", help="the job's output")] = None,
    progress: ProgressOption = None,
    input_format: Annotated[str | None, typer.Option(help="as given to run")] = None,
    id_column: Annotated[str | None, typer.Option(help="as given to run")] = None,
) -> None:
    """Compare a complete job's output with its input and its commit record; exit code 1 if something is wrong."""
    in_one_line(_verify)(job, output, {"progress": progress, "input_format": input_format, "id_column": id_column})


_SAME_NAMES = frozenset(
    {
        *("model", "workers", "input_format", "output_format", "output_shape", "split", "id_column", "prompt_column"),
        *("prompt_template", "chat", "system", "task", "top_k_labels", "dimensions", "keep_columns", "progress"),
        "force_config",
    }
)


def _run(settings: dict[str, Any], address: str | None) -> None:
    from rayinfer.jobs.batch_job import batch_job, configure_batch_job
    from rayinfer.jobs.loop.progress_display import ConsoleDisplay

    job = batch_job(**settings)
    console, stop = Console(stderr=True), threading.Event()
    with _ray(job.workers, address), _stop_on_signals(stop):
        started = time.monotonic()
        inference: Inference = configure_batch_job(job, display=ConsoleDisplay(console), stop=stop)
        if not console.is_terminal and not inference.is_complete:
            console.print(f"loading {job.model}", highlight=False)
        with console.status(f"loading {job.model}") as spinner:
            inference.events.subscribe(_ready_event(), lambda _: spinner.stop())
            result = inference.infer()
    _print_summary(job, result, time.monotonic() - started)


def _ready_event() -> Any:
    from rayinfer.jobs.events import READY

    return READY


def _print_summary(job: "BatchJob", result: "JobResult", seconds: float) -> None:
    summary = result.summary
    tokens = summary["prompt_tokens"] + summary["output_tokens"]
    state = "complete already" if result.was_complete else f"done in {seconds:.1f} s"
    typer.echo(
        f"{state}: {summary['rows']:,} rows, {summary['errors']:,} with errors, {tokens:,} tokens "
        f"({summary['prompt_tokens']:,} of prompts) -> {job.output}"
    )
    if result.first_error:
        typer.echo(f"first error: {result.first_error}", err=True)


def _status(job: str, progress: str | None, as_json: bool) -> None:
    from rayinfer.jobs.progress.status import read_status

    found = read_status(_progress(job, progress))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        counts = found.counts
        typer.echo(f"{found.state}: {found.rows_finished:,} rows at the last checkpoint, {counts.errors:,} with errors")
        if found.holder is not None and found.state != "complete":
            typer.echo(f"{found.holder}, last seen {found.last_seen_s or 0.0:.0f} s ago")
    if found.state in ("new", "stopped"):
        raise typer.Exit(1)


def _cancel(job: str, progress: str | None) -> None:
    from rayinfer.jobs.progress.status import read_status

    folder = _progress(job, progress)
    state = read_status(folder).state
    if state not in ("running", "cancelling"):
        raise ConfigError(f"{folder.location}: no copy of this job runs (it is {state})")
    folder.request_cancel()
    typer.echo("the job stops at its next checkpoint; the same command goes on from there")


def _verify(job: str, output: str | None, given: dict[str, Any]) -> None:
    from rayinfer.jobs.batch_job import batch_job
    from rayinfer.jobs.progress.folder import ProgressFolder
    from rayinfer.jobs.sources.formats import open_source
    from rayinfer.jobs.verify import verify_job

    checked = batch_job(**(_settings(job, output) | _given(given)))
    folder = ProgressFolder(checked.progress_location)
    source = open_source(
        checked.input,
        format=checked.input_format,
        id_column=checked.id_column,
        split=checked.split,
        scan_store=folder,
    )
    verification = verify_job(source, checked.output, folder)
    for problem in verification.problems:
        typer.echo(problem, err=True)
    if not verification.is_right:
        raise typer.Exit(1)
    typer.echo(f"right: {verification.num_rows:,} rows, each of the input once and in its order")


def _settings(job: str, output: str | None) -> dict[str, Any]:
    from rayinfer.jobs.batch_job import read_batch_job

    if output is not None:
        return {"input": job, "output": output}
    if not job.endswith((".yaml", ".yml")):
        raise ConfigError(f"{job}: name an output after it, or give a YAML file of settings alone")
    return read_batch_job(Path(job))


def _progress(job: str, progress: str | None) -> Any:
    from rayinfer.jobs.batch_job import batch_job, default_progress
    from rayinfer.jobs.progress.folder import ProgressFolder

    if progress is None:
        is_yaml = job.endswith((".yaml", ".yml"))
        progress = batch_job(**_settings(job, None)).progress_location if is_yaml else default_progress(job)
    return ProgressFolder(progress)


def _put(settings: dict[str, Any], name: str, values: dict[str, Any]) -> None:
    """Put options over what a file has under a name."""
    if values:
        settings[name] = {**_section(settings, name), **values}


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: must hold names and values, got {shown(found)}")
    return found


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@contextlib.contextmanager
def _ray(workers: int, address: str | None) -> Iterator[None]:
    """Run Ray for several workers: a cluster of this command's own, or the one at the address."""
    if workers == 1:
        if address is not None:
            raise ConfigError("--address is for several workers: one runs in this process")
        yield
        return
    if address is None:
        from rayinfer.jobs.interfaces import JobRunning
        from rayinfer.jobs.loop.step_loop import JobCancelled, JobInterrupted
        from rayinfer_deployments.cluster.managed_cluster import EXPLAINED, ManagedCluster

        with ManagedCluster(explained=(*EXPLAINED, JobRunning, JobCancelled, JobInterrupted)):
            yield
        return
    import ray

    from rayinfer_deployments.cluster.attached_cluster import attach

    attach(address)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM stop the job at a checkpoint, and a second one at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.alarm(0)  # set by Ray's handler
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """End with the code of what ended the job; other errors are 1."""
    from rayinfer.jobs.interfaces import JobRunning
    from rayinfer.jobs.loop.step_loop import JobCancelled, JobInterrupted

    codes: dict[type[Exception], int] = {JobRunning: ALREADY_RUNS, JobCancelled: CANCELLED, JobInterrupted: INTERRUPTED}
    try:
        yield
    except tuple(codes) as error:
        hint = "" if isinstance(error, JobRunning) else "; the same command goes on from there"
        typer.echo(f"{error}{hint}", err=True)
        raise typer.Exit(codes[type(error)]) from None
