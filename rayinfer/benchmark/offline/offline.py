"""The engine's throughput on a batch of requests, alone or in turn with a peer on the same requests."""

import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console

from rayinfer.benchmark.load.report import Environment, describe_environment
from rayinfer.benchmark.load.workloads import FIRST_TOKEN_ID, Workload, offline_workload
from rayinfer.benchmark.tables import print_rows
from rayinfer.errors import RayinferError
from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams

OWN_NAME = "rayinfer"
WARM_UP = {"num_requests": 8, "input_len": (16, 32), "output_len": (16, 32), "seed": 9}


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Throughput of one contender; the rates belong to the median run."""

    name: str
    runs: list[float]  # seconds, in the order they were run
    secs: float
    out_tok_s: float
    total_tok_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineReport:
    """An offline benchmark's result."""

    model: str
    settings: dict[str, Any]
    num_requests: int
    prompt_tokens: int
    out_tokens: int
    own: Throughput
    peer: Throughput | None
    ratio: float | None  # own output rate over the peer's
    start_to_first_token_s: float  # building the engine, weights cached, and one token
    peak_rss_bytes: int  # of this process, with the peer's model if there was one
    environment: Environment = field(default_factory=describe_environment)


class Contender(Protocol):
    """An engine that answers a workload greedily, each answer as long as asked for."""

    name: str

    def answer(self, workload: Workload, *, show_progress: bool) -> list[int]:
        """Answer every prompt; returns the number of tokens of each answer."""
        ...


class OwnEngine:
    """rayinfer's engine as a contender."""

    name = OWN_NAME

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, workload: Workload, *, show_progress: bool) -> list[int]:
        """Answer every prompt; returns the number of tokens of each answer."""
        params = [
            SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in workload.output_lengths
        ]
        outputs = self._llm.generate(workload.prompts, params, use_tqdm=show_progress)
        return [len(output.outputs[0].token_ids) for output in outputs]


def measure_in_turn(
    contenders: Sequence[Contender], workload: Workload, repeat: int, console: Console
) -> list[Throughput]:
    """Run every contender on the workload `repeat` times, A B A B, after a warm-up of each.

    Raises RayinferError when an answer is shorter or longer than asked for: such a figure would mean nothing.
    """
    warm_up = offline_workload(**WARM_UP, vocab_size=1 + max(map(max, workload.prompts)))  # type: ignore[arg-type]
    for contender in contenders:
        console.print(f"warming {contender.name} up")
        contender.answer(warm_up, show_progress=False)
    runs: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(repeat):
        for contender in contenders:
            started = time.perf_counter()
            lengths = contender.answer(workload, show_progress=True)
            seconds = time.perf_counter() - started
            if lengths != workload.output_lengths:
                wrong = sum(got != asked for got, asked in zip(lengths, workload.output_lengths, strict=True))
                raise RayinferError(f"{contender.name} gave {wrong} answers of another length than asked for")
            runs[contender.name].append(seconds)
            rate = workload.num_output_tokens / seconds
            console.print(f"run {number + 1}/{repeat} {contender.name}: {seconds:.2f} s, {rate:.1f} output tokens/s")
    return [_throughput(name, seconds_of_runs, workload) for name, seconds_of_runs in runs.items()]


def _throughput(name: str, runs: list[float], workload: Workload) -> Throughput:
    median = statistics.median(runs)
    return Throughput(
        name=name,
        runs=runs,
        secs=median,
        out_tok_s=round(workload.num_output_tokens / median, 2),
        total_tok_s=round((workload.num_prompt_tokens + workload.num_output_tokens) / median, 2),
    )


def run_offline(
    model: str,
    settings: dict[str, Any],
    workload: Workload,
    *,
    repeat: int = 3,
    peer: AbstractContextManager[Contender] | None = None,
    console: Console,
) -> OfflineReport:
    """Build the engine from `settings` (EngineConfig's fields) and measure it, in turn with `peer` if there is one.

    The prefix cache is off unless the settings say otherwise: every run has the same prompts, and from the second
    run on the prefill would not be done at all.
    """
    settings = {"enable_prefix_caching": False, **settings}
    started = time.perf_counter()
    with LLM(model, **settings) as llm:
        one_token = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        llm.generate([[FIRST_TOKEN_ID] * 8], one_token, use_tqdm=False)
        start_to_first_token = time.perf_counter() - started
        console.print(f"first token {start_to_first_token:.2f} s after the engine was started")
        with peer or nullcontext() as opponent:
            contenders = [OwnEngine(llm), opponent] if opponent else [OwnEngine(llm)]
            throughputs = measure_in_turn(contenders, workload, repeat, console)
        peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _report(model, settings, workload, throughputs, start_to_first_token, peak_rss_bytes)


def _report(
    model: str,
    settings: dict[str, Any],
    workload: Workload,
    throughputs: list[Throughput],
    start_to_first_token: float,
    peak_rss_bytes: int,
) -> OfflineReport:
    throughput = throughputs[0]
    peer_throughput = throughputs[1] if len(throughputs) > 1 else None
    return OfflineReport(
        model=model,
        settings=settings,
        num_requests=workload.num_requests,
        prompt_tokens=workload.num_prompt_tokens,
        out_tokens=workload.num_output_tokens,
        own=throughput,
        peer=peer_throughput,
        ratio=round(peer_throughput.secs / throughput.secs, 3) if peer_throughput else None,
        start_to_first_token_s=round(start_to_first_token, 3),
        peak_rss_bytes=peak_rss_bytes,
    )


def print_offline_report(report: OfflineReport, console: Console) -> None:
    """Show the result as a table."""
    rows: dict[str, object] = {
        "requests": report.num_requests,
        "prompt tokens": report.prompt_tokens,
        "output tokens": report.out_tokens,
        "seconds (median)": report.own.secs,
        "output tokens/s": report.own.out_tok_s,
        "total tokens/s": report.own.total_tok_s,
        "start to first token, s": report.start_to_first_token_s,
        "peak memory, MiB": report.peak_rss_bytes // 2**20,
        "CPU": report.environment.cpu_model,
    }
    if report.peer is not None:
        rows[f"{report.peer.name}: output tokens/s"] = report.peer.out_tok_s
        rows[f"ratio {report.own.name} / {report.peer.name}"] = report.ratio
    print_rows(f"offline, {report.model}", rows, console)
