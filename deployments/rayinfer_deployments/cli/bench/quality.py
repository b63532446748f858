"""`rayinfer bench quality`: the accuracy loss of quantisation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.failures import in_one_line

RESULTS = Path("kernels/benchmarks/results")


@in_one_line
@with_engine_options
def quality(
    model: Annotated[
        str, typer.Option(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    modes: Annotated[str, typer.Option(help="which ones, with commas between; all that a CPU has unless given")] = "",
    text: Annotated[
        Path | None,
        typer.Option(help="file to predict, documents apart by <|endoftext|>; Python's help topics unless given"),
    ] = None,
    text_name: Annotated[str | None, typer.Option(help="what the report calls the text")] = None,
    length: Annotated[int, typer.Option(min=2, help="tokens of a piece of text, at most")] = 512,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens in all, at most")] = 16_384,
    out: Annotated[Path, typer.Option(help="folder for the JSON file and the table")] = RESULTS,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Perplexity and likeliest tokens beside float32, teacher-forced, on real text; exit code 1 above a limit."""
    import shlex
    import sys
    from functools import partial

    from rich.console import Console

    from rayinfer.benchmark.load.report import write_json
    from rayinfer.benchmark.studies.quality.quality import CPU_MODES, QualityPlan, run_quality, write_markdown
    from rayinfer.benchmark.studies.quality.table import print_quality_report
    from rayinfer.benchmark.studies.quality.texts import describe_weights, quality_texts
    from rayinfer.engine.build import build_engine
    from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
    from rayinfer.models.checkpoints.sources import resolve_model

    folder, console = resolve_model(model), Console()
    texts = quality_texts(folder, text, length=length, max_tokens=max_tokens)
    plan = QualityPlan(
        model=model,
        folder=folder,
        weights=describe_weights(EMBEDDED_MODELS[model].gguf_member if model in EMBEDDED_MODELS else model, folder),
        text=text_name or texts.name,
        texts=texts.pieces,
        modes=tuple(filter(None, modes.split(","))) or CPU_MODES,
    )
    command = shlex.join(["rayinfer", *sys.argv[1:]])
    report = run_quality(plan, engine_settings, command, partial(console.print, highlight=False), build_engine)
    print_quality_report(report, console)
    stem = out / f"quality-{Path(model).name}"
    write_json(report, stem.with_suffix(".json"))
    write_markdown(report, stem.with_suffix(".md"))
    if any(mode.is_above_limit for mode in report.modes):
        raise typer.Exit(1)
