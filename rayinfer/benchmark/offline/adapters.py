"""Speed of batches with LoRA adapters beside the base model alone, in our engine and vLLM: rounds of all, in turns."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rayinfer.benchmark.load.workloads import Workload, offline_workload
from rayinfer.benchmark.offline.random_adapters import TARGETS, save_random_adapters
from rayinfer.benchmark.peers.machine import memory_read_gb_s, usable_cpus
from rayinfer.benchmark.peers.processes import EngineProcess, started_process
from rayinfer.benchmark.peers.systems import OWN, VLLM, Setup, SystemUnderTest, vllm_system
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.errors import ConfigError, RayinferError
from rayinfer.llm import LLM
from rayinfer.llm.adapter_requests import LoRARequest
from rayinfer.sampling_params import SamplingParams

PROMPT_TOKENS = 8
PEER_TIMEOUT_S = 900.0  # of one run
HEADS = (
    "system",
    "target layers",
    "adapters",
    "tok/s",
    "base tok/s",
    "% of base",
    "range %",
    "MB read",
    "bound %",
)

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterResult:
    """Rate of a batch whose streams have adapters, and that of the base alone in the same rounds."""

    system: str
    targets: str
    num_adapters: int
    tok_s: float
    base_tok_s: float
    share: float  # of the base's speed: the median over the rounds
    range: tuple[float, float]  # least and most of the rounds
    num_bytes: int  # of the adapters, all of which each step reads
    bound: float  # share of the base's speed if a step took longer by reading these bytes from memory, and no more

    def row(self) -> tuple[object, ...]:
        """Return a row below HEADS."""
        low, high = (round(100 * part, 1) for part in self.range)
        shares = (round(100 * self.share, 1), f"{low} to {high}")
        rates = (self.tok_s, self.base_tok_s)
        return (
            self.system,
            self.targets,
            self.num_adapters,
            *rates,
            *shares,
            self.num_bytes / 1e6,
            round(100 * self.bound, 1),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterReport:
    """Result of `rayinfer bench adapters`."""

    command: str
    model: str
    kernels: str
    rank: int
    num_streams: int
    num_tokens: int  # of an answer
    num_rounds: int
    read_gb_s: float
    results: list[AdapterResult]
    vllm: str  # its version, or why it was not measured
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the rates beside the base's."""
        title = f"{self.num_streams} streams with adapters of rank {self.rank}, {self.model}"
        return [
            Table(title, HEADS, [each.row() for each in self.results]),
            Table("Ratios", ("target layers", "adapters", f"{OWN} / {VLLM} {self.vllm}"), self._ratios()),
        ]

    def _ratios(self) -> list[tuple[object, ...]]:
        peers = {(each.targets, each.num_adapters): each for each in self.results if each.system == VLLM}
        own = [each for each in self.results if each.system == OWN and (each.targets, each.num_adapters) in peers]
        rows: list[tuple[object, ...]] = [
            (each.targets, each.num_adapters, round(each.tok_s / peers[each.targets, each.num_adapters].tok_s, 2))
            for each in own
        ]
        bases = [(each.base_tok_s, peers[each.targets, each.num_adapters].base_tok_s) for each in own[:1]]
        return [("none", 0, round(ours / theirs, 2)) for ours, theirs in bases] + rows


@dataclass(frozen=True, slots=True)
class _Variant:
    """Streams of a batch with their adapters: the base has none."""

    targets: str
    adapters: Sequence[LoRARequest]
    num_bytes: int

    def of_streams(self, num_streams: int) -> list[LoRARequest | None]:
        if not self.adapters:
            return [None] * num_streams
        return [self.adapters[stream % len(self.adapters)] for stream in range(num_streams)]


class _Engine(Protocol):
    """An engine that runs a batch, each request with an adapter or none."""

    def seconds_for(self, workload: Workload, adapters: Sequence[LoRARequest | None]) -> float: ...


class _OwnEngine:
    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def seconds_for(self, workload: Workload, adapters: Sequence[LoRARequest | None]) -> float:
        params = [SamplingParams(temperature=0.0, max_tokens=each, ignore_eos=True) for each in workload.output_lengths]
        started = time.perf_counter()
        outputs = self._llm.generate(workload.prompts, params, lora_request=list(adapters), use_tqdm=False)
        seconds = time.perf_counter() - started
        if failed := [each.outputs[0] for each in outputs if each.outputs[0].finish_reason != "length"]:
            raise RayinferError(f"{len(failed)} answers ended early, by {failed[0].finish_reason}")
        return seconds


class _Vllm:
    def __init__(self, process: EngineProcess) -> None:
        self._process = process

    def seconds_for(self, workload: Workload, adapters: Sequence[LoRARequest | None]) -> float:
        return self._process.seconds_for(workload, [None if each is None else each.lora_path for each in adapters])


def run_adapter_benchmark(
    model: str,
    settings: Mapping[str, Any],
    setup: Setup,
    *,
    targets: Sequence[str],
    numbers: Sequence[int],
    rank: int,
    num_streams: int,
    num_tokens: int,
    num_rounds: int,
    command: str,
    log: Log,
) -> AdapterReport:
    """Measure every number of adapters on every set of target layers; raises ConfigError for unknown ones.

    vLLM is measured beside us where `setup` has it.
    """
    if wrong := [name for name in targets if name not in TARGETS]:
        raise ConfigError(f"targets must be some of {','.join(TARGETS)}, got {','.join(wrong)}")
    most = min(max(numbers), num_streams)
    # As many slots as there are adapters: they stay where they are between rounds.
    all_slots: dict[str, Any] = {"max_loras": most * len(targets), "max_lora_rank": rank}
    vllm = vllm_system(setup, enable_lora=True, **all_slots)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rayinfer-bench-")))
        variants = [_Variant("none", (), 0)]
        for name in targets:
            saved = save_random_adapters(folder / name, setup.model_folder, TARGETS[name], rank, most)
            requests = [LoRARequest(f"{name}-{index}", index, str(path)) for index, path in enumerate(saved.folders)]
            variants += [_Variant(name, requests[:number], saved.num_bytes * min(number, most)) for number in numbers]
        gb_s = memory_read_gb_s(len(usable_cpus()))
        own_settings = {"enable_prefix_caching": False, "enable_lora": True, **all_slots, **settings}
        llm = stack.enter_context(LLM(model, **own_settings))
        engines: dict[str, _Engine] = {OWN: _OwnEngine(llm)}
        if vllm.missing is None:
            log("opening vLLM")
            engines[VLLM] = _open_vllm(vllm, folder / "vllm.log", setup.vocab_size, stack)
        lengths = (PROMPT_TOKENS, PROMPT_TOKENS), (num_tokens, num_tokens)
        work = offline_workload(num_streams, *lengths, vocab_size=min(1000, setup.vocab_size), seed=1)
        times = _measure(engines, variants, work, num_rounds, log)
        kernels = llm.description.kernels
    return AdapterReport(
        command=command,
        model=model,
        kernels=kernels,
        rank=rank,
        num_streams=num_streams,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        read_gb_s=round(gb_s, 1),
        results=[
            _result(name, variant, num_streams, of_engine[0], of_variant, gb_s)
            for name, of_engine in times.items()
            for variant, of_variant in zip(variants[1:], of_engine[1:], strict=True)
        ],
        vllm=vllm.missing or vllm.version,
    )


def _open_vllm(system: SystemUnderTest, log: Path, vocab_size: int, stack: contextlib.ExitStack) -> _Vllm:
    process = stack.enter_context(started_process(system.engine_command, log, has_pipes=True))
    return _Vllm(EngineProcess(process, log, vocab_size, PEER_TIMEOUT_S))


def _measure(
    engines: Mapping[str, _Engine], variants: Sequence[_Variant], work: Workload, num_rounds: int, log: Log
) -> dict[str, list[list[float]]]:
    """Return the seconds a token of each engine's variants in every round; the first one reads the adapters."""
    times: dict[str, list[list[float]]] = {name: [[] for _ in variants] for name in engines}
    first = replace(work, output_lengths=[2] * work.num_requests)
    for number in range(num_rounds + 1):
        order = range(len(variants)) if number % 2 == 0 else range(len(variants) - 1, -1, -1)
        for index in order:
            adapters = variants[index].of_streams(work.num_requests)
            for name, engine in engines.items():
                log(
                    f"round {number} of {num_rounds}: {name}, {variants[index].targets} {len(variants[index].adapters)}"
                )
                seconds = engine.seconds_for(work if number else first, adapters)
                if number:
                    times[name][index].append(seconds / work.num_output_tokens)
    return times


def _result(
    system: str, variant: _Variant, num_streams: int, base: Sequence[float], times: Sequence[float], gb_s: float
) -> AdapterResult:
    shares = [theirs / ours for ours, theirs in zip(times, base, strict=True)]
    step_s = statistics.median(base) * num_streams
    return AdapterResult(
        system=system,
        targets=variant.targets,
        num_adapters=len(variant.adapters),
        tok_s=round(1 / statistics.median(times), 1),
        base_tok_s=round(1 / statistics.median(base), 1),
        share=round(statistics.median(shares), 4),
        range=(round(min(shares), 4), round(max(shares), 4)),
        num_bytes=variant.num_bytes,
        bound=round(step_s / (step_s + variant.num_bytes / gb_s / 1e9), 4),
    )
