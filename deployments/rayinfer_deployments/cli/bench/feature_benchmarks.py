"""Benchmarks of what requests may ask of an engine: structured outputs, stored prefixes, drafts, adapters."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.bench.shared_options import (
    JsonFile,
    Model,
    PeersFolder,
    VllmPython,
    peers_setup,
    positive_numbers,
    progress_log,
    show,
    split_names,
    typed_command,
)
from rayinfer_deployments.cli.failures import interrupt_on_signals
from rayinfer_deployments.cli.options.config_options import with_engine_options


def _write(report: Any, folder: Path | None, name: str, title: str) -> None:
    """Write a report's tables and figures into a folder, if there is one, as `name`.md and .json."""
    if folder is None:
        return
    from rayinfer.benchmark.report import write_json, write_markdown

    notes = (f"`{report.command}`, {report.kernels} kernels", str(report.environment))
    write_markdown(folder / f"{name}.md", title, report.tables(), *notes)
    write_json(report, folder / f"{name}.json")


@with_engine_options
def structured(
    model: Model = DEFAULT_MODEL,
    streams: Annotated[str, typer.Option(help="requests at once, with commas between")] = "1,32",
    num_tokens: Annotated[int, typer.Option(min=8, help="tokens of an answer")] = 96,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of both, one after the other; the median counts")] = 7,
    temperature: Annotated[float, typer.Option(min=0.0, help="of all requests")] = 1.0,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Answers held to JSON schemas beside free ones, in turns, and the compilation of a schema of 10 kB."""
    from rayinfer.benchmark.offline.structured import run_structured_benchmark

    with progress_log() as log:
        report = run_structured_benchmark(
            model,
            engine_settings,
            positive_numbers(streams, "streams"),
            num_tokens=num_tokens,
            num_rounds=rounds,
            temperature=temperature,
            command=typed_command(),
            log=log,
        )
    show(report, json_file)


@with_engine_options
def kv_store(
    model: Model = DEFAULT_MODEL,
    prefix_tokens: Annotated[int, typer.Option(min=64, help="tokens of a prefix")] = 2000,
    prefixes: Annotated[int, typer.Option(min=1, help="prefixes, one after the other; the median counts")] = 7,
    streams: Annotated[int, typer.Option(min=1, help="prefixes that come at once")] = 16,
    num_requests: Annotated[int, typer.Option(min=1, help="requests in a batch of which nothing is stored")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of such batches with and without a store")] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="folder for kv-store.md and .json")] = None,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """First tokens behind prefixes that another engine computed, and what the store costs where nothing is found."""
    interrupt_on_signals()  # its shared memory has to be freed
    from rayinfer.benchmark.offline.kv_store import run_kv_store_benchmark

    with progress_log() as log:
        report = run_kv_store_benchmark(
            model,
            engine_settings,
            prefix_tokens=prefix_tokens,
            num_prefixes=prefixes,
            num_streams=streams,
            num_requests=num_requests,
            num_rounds=rounds,
            command=typed_command(),
            log=log,
        )
    show(report, json_file)
    _write(report, output, "kv-store", "KV block store")


@with_engine_options
def speculation(
    model: Model = DEFAULT_MODEL,
    drafts: Annotated[str, typer.Option(help="measured beside off: auto or a number of tokens")] = "auto",
    streams: Annotated[str, typer.Option(help="requests at once, with commas between")] = "1,8",
    num_tokens: Annotated[int, typer.Option(min=8, help="longest answer, in tokens")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of both, one after the other; the median counts")] = 5,
    temperature: Annotated[float, typer.Option(min=0.0, help="of all requests")] = 0.0,
    peer: Annotated[str | None, typer.Option(help="run its drafts in the same rounds: llama.cpp")] = None,
    peers_folder: PeersFolder = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="folder for speculation.md and .json")] = None,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Speculative decoding beside none, in turns: code that is edited, texts that are summarized, new code.

    A peer answers the same prompts in the same rounds, without drafts and in each of its modes.
    """
    interrupt_on_signals()  # a peer's server has to be ended
    from rayinfer.benchmark.offline.llama_cpp_peer import check_peer_name
    from rayinfer.benchmark.offline.speculation import run_speculation_benchmark

    if peer is not None:
        check_peer_name(peer)
    with progress_log() as log:
        report = run_speculation_benchmark(
            model,
            engine_settings,
            positive_numbers(streams, "streams"),
            speculation=int(drafts) if drafts.isdigit() else drafts,  # type: ignore[arg-type]
            num_tokens=num_tokens,
            num_rounds=rounds,
            temperature=temperature,
            command=typed_command(),
            log=log,
            peer_setup=None
            if peer is None
            else peers_setup(model, peers_folder, engine_settings.get("kernels", "auto"), {}),
        )
    show(report, json_file)
    _write(report, output, "speculation", "Speculative decoding")


@with_engine_options
def adapters(
    model: Model = DEFAULT_MODEL,
    targets: Annotated[str, typer.Option(help="layers with adapters: qv, all")] = "qv,all",
    number: Annotated[str, typer.Option(help="different adapters in the batch, with commas between")] = "1,8,64",
    rank: Annotated[int, typer.Option(min=1, max=512, help="of all adapters")] = 16,
    streams: Annotated[int, typer.Option(min=1, help="requests at once")] = 64,
    num_tokens: Annotated[int, typer.Option(min=2, help="tokens of an answer")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of all batches, in turns; medians count")] = 5,
    peers_folder: PeersFolder = None,
    vllm_python: VllmPython = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="folder for adapters.md and .json")] = None,
    json_file: JsonFile = None,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Batches whose streams have LoRA adapters beside the base model alone, in turns; adapters are random.

    Where vLLM is installed, it runs the same batches.
    """
    interrupt_on_signals()  # a paused peer has to be killed
    from rayinfer.benchmark.offline.adapters import run_adapter_benchmark

    programs = {} if vllm_python is None else {"vllm": vllm_python}
    with progress_log() as log:
        report = run_adapter_benchmark(
            model,
            engine_settings,
            peers_setup(model, peers_folder, engine_settings.get("kernels", "auto"), programs),
            targets=split_names(targets),
            numbers=positive_numbers(number, "adapters"),
            rank=rank,
            num_streams=streams,
            num_tokens=num_tokens,
            num_rounds=rounds,
            command=typed_command(),
            log=log,
        )
    show(report, json_file)
    _write(report, output, "adapters", "LoRA adapters")
