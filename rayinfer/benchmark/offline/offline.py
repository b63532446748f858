"""Throughput on a batch of requests: the engine alone, or interleaved with a peer on the same requests."""

import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console

from rayinfer.benchmark.load.workloads import FIRST_TOKEN_ID, Workload, offline_workload
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.errors import RayinferError
from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams

OWN_NAME = "rayinfer"
WARM_UP = {"num_requests": 8, "input_len": (16, 32), "output_len": (16, 32), "seed": 9}


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Throughput of one system; the rates belong to the median run."""

    name: str
    runs: list[float]  # seconds, in the order they were run
    secs: float
    out_tok_s: float
    total_tok_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineReport:
    """Result of the offline benchmark."""

    model: str
    settings: dict[str, Any]
    kernels: str  # the CPU kernel path, or what else computed
    num_requests: int
    prompt_tokens: int
    out_tokens: int
    own: Throughput
    peer: Throughput | None
    ratio: float | None  # own output rate over the peer's
    start_to_first_token_s: float  # building the engine, weights cached, and one token
    peak_rss_bytes: int  # of this process, with the peer's model if there was one
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return all figures."""
        rows: list[tuple[str, object]] = [
            ("kernels", self.kernels),
            ("requests", self.num_requests),
            ("prompt tokens", self.prompt_tokens),
            ("output tokens", self.out_tokens),
            ("seconds (median)", self.own.secs),
            ("output tokens/s", self.own.out_tok_s),
            ("total tokens/s", self.own.total_tok_s),
            ("start to first token, s", self.start_to_first_token_s),
            ("peak memory, MiB", self.peak_rss_bytes // 2**20),
        ]
        if self.peer is not None:
            rows.append((f"{self.peer.name}: output tokens/s", self.peer.out_tok_s))
            rows.append((f"ratio {self.own.name} / {self.peer.name}", self.ratio))
        return [Table(f"offline, {self.model}", ("", "figure"), rows)]


class SystemUnderTest(Protocol):
    """Engine that answers a workload greedily with the given output lengths."""

    name: str

    def answer(self, workload: Workload, *, show_progress: bool) -> list[int]:
        """Answer every prompt; returns the number of tokens of each answer."""
        ...


class OwnEngine:
    """The engine of rayinfer."""

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


def measure_interleaved(
    systems: Sequence[SystemUnderTest], workload: Workload, repeat: int, console: Console
) -> list[Throughput]:
    """Run every system on the workload `repeat` times, A B A B, after a warm-up of each.

    Raises RayinferError when an answer has another length than asked for.
    """
    warm_up = offline_workload(**WARM_UP, vocab_size=1 + max(map(max, workload.prompts)))  # type: ignore[arg-type]
    for system in systems:
        console.print(f"warming {system.name} up")
        system.answer(warm_up, show_progress=False)
    runs: dict[str, list[float]] = {system.name: [] for system in systems}
    for number in range(repeat):
        for system in systems:
            started = time.perf_counter()
            lengths = system.answer(workload, show_progress=True)
            seconds = time.perf_counter() - started
            if lengths != workload.output_lengths:
                wrong = sum(got != asked for got, asked in zip(lengths, workload.output_lengths, strict=True))
                raise RayinferError(f"{system.name} gave {wrong} answers of another length than asked for")
            runs[system.name].append(seconds)
            rate = workload.num_output_tokens / seconds
            console.print(f"run {number + 1}/{repeat} {system.name}: {seconds:.2f} s, {rate:.1f} output tokens/s")
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
    peer: AbstractContextManager[SystemUnderTest] | None = None,
    console: Console,
) -> OfflineReport:
    """Build the engine from `settings` (EngineConfig's fields) and measure it, interleaved with `peer` if there is one.

    The prefix cache is off unless the settings say otherwise: every run has the same prompts, and from the second
    run on nothing would be prefilled.
    """
    settings = {"enable_prefix_caching": False, **settings}
    started = time.perf_counter()
    with LLM(model, **settings) as llm:
        kernels = llm.description.kernels
        one_token = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        llm.generate([[FIRST_TOKEN_ID] * 8], one_token, use_tqdm=False)
        start_to_first_token = time.perf_counter() - started
        console.print(f"first token {start_to_first_token:.2f} s after the engine was started")
        with peer or nullcontext() as opponent:
            systems = [OwnEngine(llm), opponent] if opponent else [OwnEngine(llm)]
            throughputs = measure_interleaved(systems, workload, repeat, console)
        peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own, peer_throughput = throughputs[0], throughputs[1] if len(throughputs) > 1 else None
    return OfflineReport(
        model=model,
        settings=settings,
        kernels=kernels,
        num_requests=workload.num_requests,
        prompt_tokens=workload.num_prompt_tokens,
        out_tokens=workload.num_output_tokens,
        own=own,
        peer=peer_throughput,
        ratio=round(peer_throughput.secs / own.secs, 3) if peer_throughput else None,
        start_to_first_token_s=round(start_to_first_token, 3),
        peak_rss_bytes=peak_rss_bytes,
    )
