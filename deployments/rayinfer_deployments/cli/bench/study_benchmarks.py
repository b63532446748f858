"""Studies: accuracy of quantized modes, effect of the router's policies, and autoscaling policies."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.bench.shared_options import (
    RESULTS,
    JsonFile,
    Model,
    Output,
    progress_log,
    show,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.options.config_options import with_engine_options

PAUSE_EVERY_S = 600.0  # of a trace that is replayed with pauses


@with_engine_options
def quality(
    model: Model = DEFAULT_MODEL,
    modes: Annotated[str, typer.Option(help="modes, with commas between; all modes of a CPU unless given")] = "",
    text: Annotated[
        Path | None,
        typer.Option(help="file to predict, documents separated by <|endoftext|>; Python's help topics unless given"),
    ] = None,
    text_name: Annotated[str | None, typer.Option(help="name of the text in the report")] = None,
    length: Annotated[int, typer.Option(min=2, help="tokens of a piece of text, at most")] = 512,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens in all, at most")] = 16_384,
    out: Output = RESULTS,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Perplexity and likeliest tokens beside float32, teacher-forced, on real text; exit code 1 above a limit."""
    from rayinfer.benchmark.studies.quality.perplexity import CPU_MODES, QualityPlan, run_quality
    from rayinfer.benchmark.studies.quality.texts import describe_weights, quality_texts
    from rayinfer.engine.build import build_engine
    from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
    from rayinfer.models.checkpoints.sources import resolve_model

    folder = resolve_model(model)
    texts = quality_texts(folder, text, length=length, max_tokens=max_tokens)
    plan = QualityPlan(
        model=model,
        folder=folder,
        weights=describe_weights(EMBEDDED_MODELS[model].gguf_member if model in EMBEDDED_MODELS else model, folder),
        text=text_name or texts.name,
        texts=texts.pieces,
        modes=tuple(split_names(modes)) or CPU_MODES,
    )
    with progress_log(keeps_lines=True) as log:
        report = run_quality(plan, engine_settings, typed_command(), log, build_engine)
    stem = out / f"quality-{Path(model).name}"
    show(report, stem.with_suffix(".json"))
    report.write_markdown(stem.with_suffix(".md"))
    if any(mode.is_above_limit for mode in report.modes):
        raise typer.Exit(1)


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


@with_engine_options
def roles(
    model: Model = DEFAULT_MODEL,
    num_engines: Annotated[int, typer.Option(min=2, help="engines, of one thread each where they are measured")] = 2,
    num_prefill: Annotated[int, typer.Option(min=1, help="of them for long prompts")] = 1,
    duration_s: Annotated[float, typer.Option(min=1, help="seconds in which requests arrive")] = 30.0,
    chats_per_s: Annotated[float, typer.Option(min=0.001, help="short requests that arrive a second")] = 0.5,
    long_per_s: Annotated[float, typer.Option(min=0.001, help="long prompts that arrive a second")] = 0.1,
    chat_tokens: Annotated[str, typer.Option(help="tokens of a chat's prompt and answer")] = "64,64",
    long_tokens: Annotated[str, typer.Option(help="tokens of a long prompt and its answer")] = "1500,32",
    prompt_rate: Annotated[float, typer.Option(min=1, help="prompt tokens a second of a simulated engine")] = 500.0,
    step_ms: Annotated[float, typer.Option(min=0.1, help="of its step, however little it computes")] = 25.0,
    request_ms: Annotated[float, typer.Option(min=0, help="more of it for each request that gets a token")] = 2.0,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="prompt tokens of its step")] = 512,
    transfer_us: Annotated[float, typer.Option(min=0, help="to hand over one token of a prompt")] = 50.0,
    num_rounds: Annotated[int, typer.Option(min=0, help="measurements of each kind, in turns; 0: simulate only")] = 2,
    output: Output = RESULTS,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Long prompts among short chats: engines with roles against engines that do both, simulated and measured."""
    from rayinfer.benchmark.report import write_markdown
    from rayinfer.benchmark.studies.autoscaling.simulated_engine import EnginePace
    from rayinfer.benchmark.studies.roles.mixed_load import MixedLoad
    from rayinfer.benchmark.studies.roles.roles_report import run_roles_benchmark
    from rayinfer.models.checkpoints.sources import resolve_model

    if num_prefill >= num_engines:
        raise ConfigError(f"--num-prefill {num_prefill} leaves none of {num_engines} engines to decode")
    load = MixedLoad(
        duration_s=duration_s,
        chats_per_s=chats_per_s,
        chat_tokens=_two_numbers("--chat-tokens", chat_tokens),
        long_per_s=long_per_s,
        long_tokens=_two_numbers("--long-tokens", long_tokens),
    )
    pace = EnginePace(
        step_s=step_ms / 1e3, prompt_token_s=1 / prompt_rate, output_token_s=request_ms / 1e3, chunk_tokens=chunk_tokens
    )
    with progress_log(keeps_lines=True) as log:
        report = run_roles_benchmark(
            model,
            resolve_model(model),
            load,
            pace,
            num_engines=num_engines,
            num_prefill=num_prefill,
            transfer_token_s=transfer_us / 1e6,
            settings=engine_settings,
            num_rounds=num_rounds,
            command=typed_command(),
            log=log,
        )
    show(report, output / "roles.json")
    write_markdown(output / "roles.md", "Roles of engines", report.tables(), f"`{report.command}`")


def _two_numbers(option: str, text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} takes two numbers with a comma between, got {text!r}")
    return int(parts[0]), int(parts[1])


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
    max_num_seqs: Annotated[int, typer.Option(min=1, help="requests that an engine runs at once")] = 64,
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
        max_num_seqs=max_num_seqs,
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
