"""Benchmark of predictors, beside their peers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rayinfer.config import cache_folder
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.bench.shared_options import (
    PROGRAM_PANEL,
    RESULTS,
    Output,
    PeersFolder,
    Seed,
    progress_log,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.failures import interrupt_on_signals

ALL_ROWS = "texts,int8,http,batcher,bad,busy,identical,images,broken"
SentenceTransformersPython = Annotated[
    Path | None, typer.Option(help="interpreter that has sentence-transformers", rich_help_panel=PROGRAM_PANEL)
]
OnnxRuntimePython = Annotated[
    Path | None,
    typer.Option(help="interpreter that has onnxruntime, onnxscript and torch", rich_help_panel=PROGRAM_PANEL),
]
OpenVinoPython = Annotated[
    Path | None, typer.Option(help="interpreter that has openvino, nncf and torch", rich_help_panel=PROGRAM_PANEL)
]


def predictors(
    rows: Annotated[str, typer.Option(help="what is measured, with commas between")] = ALL_ROWS,
    model: Annotated[str, typer.Option(help="embedder: folder, repository or embedded name")] = "all-minilm-l6-v2",
    image_model: Annotated[str, typer.Option(help="image classifier")] = "mobilenet-v2",
    rounds: Annotated[int, typer.Option(min=1, help="runs of every system; medians count")] = 3,
    num_texts: Annotated[int, typer.Option(min=1, help="texts that are encoded")] = 1000,
    num_images: Annotated[int, typer.Option(min=1, help="images that are classified")] = 200,
    num_requests: Annotated[int, typer.Option(min=1, help="of one sentence through HTTP")] = 300,
    num_broken: Annotated[int, typer.Option(min=1, help="bombs and broken images")] = 10_000,
    num_threads: Annotated[int | None, typer.Option(min=1, help="of every system  [default: the usable cores]")] = None,
    clients: Annotated[str, typer.Option(help="clients of the batcher in a closed loop")] = "1,4,16,64",
    seconds: Annotated[float, typer.Option(min=0.5, help="of each load on the batcher")] = 4.0,
    seed: Seed = 0,
    images: Annotated[Path | None, typer.Option(help="folder of photographs (default: pictures that are made)")] = None,
    peers_folder: PeersFolder = None,
    sentence_transformers_python: SentenceTransformersPython = None,
    onnxruntime_python: OnnxRuntimePython = None,
    openvino_python: OpenVinoPython = None,
    resume: Annotated[bool, typer.Option("--resume", help="leave out the rows that the results have already")] = False,
    output: Output = RESULTS,
) -> None:
    """Models that do not generate beside sentence-transformers, ONNX Runtime and OpenVINO; writes after each row."""
    interrupt_on_signals()  # paused runtimes have to be killed
    from rayinfer.benchmark.peers.machine import usable_cpus
    from rayinfer.benchmark.predictors.predictor_comparison import ComparisonPlan, run_predictor_comparison
    from rayinfer.benchmark.predictors.rows import OPENVINO, ORT, SENTENCES
    from rayinfer.benchmark.predictors.runtimes import Programs
    from rayinfer.models.checkpoints.sources import resolve_model

    plan = ComparisonPlan(
        rows=tuple(split_names(rows)),
        rounds=rounds,
        num_texts=num_texts,
        num_images=num_images,
        num_requests=num_requests,
        num_broken=num_broken,
        clients=_numbers(clients),
        seconds=seconds,
        seed=seed,
        command=typed_command(),
        server_command=(str(Path(sys.executable).with_name("rayinfer")), "serve"),
        results_folder=output,
        resumes=resume,
        images=images,
    )
    given = {SENTENCES: sentence_transformers_python, ORT: onnxruntime_python, OPENVINO: openvino_python}
    folder = peers_folder or cache_folder() / "peers"
    programs = Programs(
        text_model=resolve_model(model) if plan.needs_texts else Path(model),
        image_model=resolve_model(image_model) if plan.needs_images else Path(image_model),
        num_threads=num_threads or len(usable_cpus()),
        exports=folder / "models",
        pythons={peer: python or folder / peer / "bin" / "python" for peer, python in given.items()},
    )
    with progress_log(keeps_lines=True) as log:
        report = run_predictor_comparison(programs, plan, log)
    typer.echo(report.markdown_file.read_text())
    typer.echo(f"written: {report.json_file}, {report.markdown_file}, {report.svg_file}")


def _numbers(clients: str) -> tuple[int, ...]:
    numbers = split_names(clients)
    if wrong := [number for number in numbers if not number.isdecimal() or int(number) < 1]:
        raise ConfigError(f"clients must be numbers from 1, got {','.join(wrong)}")
    return tuple(map(int, numbers))
