"""Benchmarks of the engine: throughput, scheduler, parallelism, GPU, and peers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.bench.shared_options import (
    PROGRAM_PANEL,
    RESULTS,
    JsonFile,
    Kernels,
    Model,
    Output,
    PeersFolder,
    Seed,
    VllmPython,
    checked_kernel_path,
    peers_setup,
    progress_count,
    progress_log,
    show,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.failures import interrupt_on_signals
from rayinfer_deployments.cli.options.config_options import with_engine_options

ALL_CASES = "batch,stream,prefill,http,start"
ALL_MODES = "bfloat16,int8-dynamic,int8-dynamic+int8-kv,int8,int4,gguf-q8_0,gguf-q4_1"


@with_engine_options
def offline(
    model: Model = DEFAULT_MODEL,
    num_requests: Annotated[int, typer.Option(min=1, help="requests in the batch")] = 64,
    input_len: Annotated[str, typer.Option(help="prompt lengths in tokens, LOW:HIGH")] = "32:256",
    output_len: Annotated[str, typer.Option(help="output lengths in tokens, LOW:HIGH")] = "32:256",
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(min=1, help="runs; the median counts")] = 3,
    peer: Annotated[str | None, typer.Option(help="interleave with it on the same requests: transformers")] = None,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Throughput on a batch of random prompts, greedy, with the drawn output lengths; the prefix cache is off."""
    from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE, offline_workload, parse_length_range
    from rayinfer.benchmark.offline.offline import run_offline
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.model_config import read_model_config

    lengths = parse_length_range(input_len), parse_length_range(output_len)
    folder = resolve_model(model)
    vocab_size = min(DEFAULT_VOCAB_SIZE, read_model_config(folder).vocab_size)
    workload = offline_workload(num_requests, *lengths, vocab_size=vocab_size, seed=seed)
    opened_peer = None
    if peer is not None:
        from rayinfer.benchmark.offline.transformers_peer import check_peer_name, transformers_peer

        check_peer_name(peer)
        opened_peer = transformers_peer(folder, engine_settings.get("dtype", "auto"), workload)
    report = run_offline(model, engine_settings, workload, repeat=repeat, peer=opened_peer, console=Console())
    show(report, json_file)


def scheduler(
    running: Annotated[
        list[int] | None,
        typer.Option(min=1, help="running requests, once for each number to measure; 256 and 1024 unless given"),
    ] = None,
    queued: Annotated[int, typer.Option(min=0, help="requests that wait meanwhile")] = 10_000,
    num_steps: Annotated[int, typer.Option(min=2, help="steps that are timed")] = 500,
    num_requests: Annotated[
        int, typer.Option(min=0, help="short requests while memory is measured; 0 for none")
    ] = 1_000_000,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Time and memory of the engine's control plane alone: planning steps, applying their tokens, adding requests."""
    from rayinfer.benchmark.control_plane.scheduler import run_scheduler_benchmark

    with progress_count(num_requests) as on_progress:
        report = run_scheduler_benchmark(
            running=running or (256, 1024),
            num_queued=queued,
            num_steps=num_steps,
            num_requests=num_requests,
            seed=seed,
            on_progress=on_progress,
        )
    show(report, json_file)


@with_engine_options
def parallel(
    model: Model = DEFAULT_MODEL,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="ranks that shard every layer")] = 2,
    pipeline_parallel_size: Annotated[int, typer.Option(min=1, help="stages that divide the layers")] = 2,
    batch: Annotated[int, typer.Option(min=1, help="requests that decode at once")] = 8,
    num_steps: Annotated[int, typer.Option(min=2, help="steps that are timed")] = 50,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Decoding on one rank, over tensor ranks alone and over stages alone; and the control plane without a model."""
    from rayinfer.benchmark.control_plane.parallel import run_parallel_benchmark
    from rayinfer.models.checkpoints.sources import resolve_model

    sizes = sorted({(1, 1), (tensor_parallel_size, 1), (1, pipeline_parallel_size)})
    folder = resolve_model(model)
    show(run_parallel_benchmark(model, folder, sizes, batch=batch, num_steps=num_steps, **engine_settings), json_file)


def gpu(
    output: Output = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help="fewer cases and shapes, each once, in two minutes")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="tiny shapes, on any machine: figures mean nothing")
    ] = False,
    only: Annotated[str, typer.Option(help="some workloads, B1,B3 for example")] = "",
    minutes: Annotated[
        float | None, typer.Option(help="no workload begins later  [default: 8, or 2 with --quick]")
    ] = None,
) -> None:
    """The GPU's peak rates, and workloads beside their roofline times, with random weights in real models' shapes."""
    from rayinfer.benchmark.gpu.suite import run_gpu_benchmark

    report = run_gpu_benchmark(
        output,
        typer.echo,
        is_quick=quick,
        is_dry_run=dry_run,
        only=split_names(only),
        limit_s=None if minutes is None else 60 * minutes,
        command=typed_command(),
    )
    if not all(check.is_right for check in report.checks):
        raise typer.Exit(1)


def kernels(
    kernels: Kernels = "auto",
    num_threads: Annotated[int | None, typer.Option(min=1, help="threads  [default: the usable cores]")] = None,
    formats: Annotated[str, typer.Option(help="formats of the linear layers, with commas between; all if empty")] = "",
    rows: Annotated[str, typer.Option(help="rows of the linear layers' input")] = "1,4,16,64,512",
    output: Output = RESULTS,
) -> None:
    """The CPU kernels beside peak rates and memory bandwidth, and torch's operations kept to the same instructions."""
    from rayinfer.benchmark.kernels.kernel_benchmark import run_kernel_benchmark
    from rayinfer.benchmark.kernels.kernel_cases import FORMATS, Sizes
    from rayinfer.benchmark.kernels.kernel_report import write_kernel_report
    from rayinfer.benchmark.peers.machine import usable_cpus
    from rayinfer.benchmark.peers.systems import INSTRUCTION_LIMITS

    chosen = tuple(split_names(formats)) or tuple(FORMATS)
    if wrong := [name for name in chosen if name not in FORMATS]:
        raise ConfigError(f"formats must be some of {','.join(FORMATS)}, got {','.join(wrong)}")
    if wrong := [number for number in split_names(rows) if not number.isdecimal() or int(number) < 1]:
        raise ConfigError(f"rows must be numbers from 1, got {','.join(wrong)}")
    path = checked_kernel_path(kernels)
    sizes = Sizes(rows=tuple(map(int, split_names(rows))), formats=chosen)
    with progress_log() as log:
        report = run_kernel_benchmark(
            path,
            INSTRUCTION_LIMITS.get(path, {}),
            num_threads or len(usable_cpus()),
            sizes,
            log,
            command=typed_command(),
        )
    files = write_kernel_report(report, output)
    typer.echo(files[1].read_text())
    typer.echo(f"written: {', '.join(map(str, files))}")


def peers(
    model: Annotated[
        str, typer.Option(help="folder, Hugging Face repository or embedded name; its last part names the report")
    ] = DEFAULT_MODEL,
    work: Annotated[str, typer.Option(help="cases, with commas between")] = ALL_CASES,
    mode: Annotated[str, typer.Option(help="our own modes, with commas between")] = ALL_MODES,
    rounds: Annotated[int, typer.Option(min=1, help="runs of every system; medians count")] = 3,
    requests: Annotated[
        int, typer.Option(min=1, help="requests in the batch; loads over HTTP change in proportion")
    ] = 64,
    time_budget: Annotated[
        float | None, typer.Option(help="minutes after which no run begins; the same command goes on later")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure everything again, finished runs too")] = False,
    peers_folder: PeersFolder = None,
    vllm_python: VllmPython = None,
    openvino_python: Annotated[
        Path | None, typer.Option(help="interpreter that has openvino-genai", rich_help_panel=PROGRAM_PANEL)
    ] = None,
    llama_bench: Annotated[
        Path | None, typer.Option(help="llama-bench, with llama-server beside it", rich_help_panel=PROGRAM_PANEL)
    ] = None,
    kernels: Kernels = "auto",
    output: Output = RESULTS,
) -> None:
    """Compare with vLLM, OpenVINO and llama.cpp on the same cores; writes JSON, Markdown and SVG after each run.

    Runs of the same configuration that were written before are kept, and the missing ones are made.
    """
    interrupt_on_signals()  # paused engines have to be killed
    from rayinfer.benchmark.peers import comparison
    from rayinfer.benchmark.peers.systems import find_systems

    cases, command = tuple(split_names(work)), typed_command()
    plan = comparison.Plan(
        cases=cases,
        rounds=rounds,
        command=command,
        results_folder=output,
        num_requests=requests,
        time_budget_s=None if time_budget is None else 60 * time_budget,
        is_fresh=fresh,
    )
    programs = {"vllm": vllm_python, "openvino": openvino_python, "llama.cpp": llama_bench}
    found = {peer: program for peer, program in programs.items() if program is not None}
    setup = peers_setup(model, peers_folder, kernels, found)
    with progress_log(keeps_lines=True) as log:
        report = comparison.run_comparison(find_systems(setup, split_names(mode)), setup, plan, log)
    typer.echo(report.markdown_file.read_text())
    typer.echo(f"written: {report.json_file}, {report.markdown_file}, {report.svg_file}")


def jobs(
    num_rows: Annotated[
        int, typer.Option(min=100, help="rows through an engine of 2,000 rows/s in virtual time")
    ] = 100_000,
    resume_rows: Annotated[int, typer.Option(min=100, help="finished rows before a resumption")] = 1_000_000,
    model: Annotated[str, typer.Option(help="model of the job that takes turns with LLM.generate")] = DEFAULT_MODEL,
    prompts: Annotated[int, typer.Option(min=1, help="its prompts, real text")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="turns of both")] = 3,
    output: Output = RESULTS,
) -> None:
    """Cost of an offline job: its loop beside a fast engine, memory, resumption, and its rate beside LLM.generate."""
    from rayinfer.benchmark.offline.job_costs import measure_job_costs
    from rayinfer.benchmark.report import write_json, write_markdown

    with progress_log(keeps_lines=True) as log:
        report = measure_job_costs(
            num_rows, resume_rows, model, num_prompts=prompts, num_rounds=rounds, command=typed_command(), log=log
        )
    show(report)
    write_json(report, output / "jobs.json")
    note = f"{report.environment}: `{report.command}`"
    write_markdown(output / "jobs.md", "What an offline job costs", report.tables(), note)
    typer.echo(f"written: {output / 'jobs.json'}, {output / 'jobs.md'}")
