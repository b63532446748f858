"""Speed of batches with LoRA adapters beside the base model alone: rounds of both in one process, in turns."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.offline.random_adapters import TARGETS, save_random_adapters
from rayinfer.benchmark.peers.machine import memory_read_gb_s, usable_cpus
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.errors import ConfigError, RayinferError
from rayinfer.llm import LLM
from rayinfer.llm.adapter_requests import LoRARequest
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.sampling_params import SamplingParams

PROMPT_TOKENS = 8
HEADS = ("target layers", "adapters", "tok/s", "base tok/s", "% of base", "rounds' range %", "MB read", "bound %")

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterResult:
    """Rate of a batch whose streams have adapters, and that of the base alone in the same rounds."""

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
        return self.targets, self.num_adapters, *rates, *shares, self.num_bytes / 1e6, round(100 * self.bound, 1)


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
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the rates beside the base's."""
        title = f"{self.num_streams} streams with adapters of rank {self.rank}, {self.model}"
        return [Table(title, HEADS, [each.row() for each in self.results])]


@dataclass(frozen=True, slots=True)
class _Variant:
    """Streams of a batch with their adapters: the base has none."""

    targets: str
    adapters: Sequence[LoRARequest]
    num_bytes: int

    def requests(self, num_streams: int) -> list[LoRARequest | None]:
        if not self.adapters:
            return [None] * num_streams
        return [self.adapters[stream % len(self.adapters)] for stream in range(num_streams)]


def run_adapter_benchmark(
    model: str,
    settings: Mapping[str, Any],
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
    """Measure every number of adapters on every set of target layers; raises ConfigError for unknown ones."""
    if wrong := [name for name in targets if name not in TARGETS]:
        raise ConfigError(f"targets must be some of {','.join(TARGETS)}, got {','.join(wrong)}")
    most = min(max(numbers), num_streams)
    # As many slots as there are adapters: they stay where they are between rounds.
    all_slots: dict[str, Any] = {"max_loras": most * len(targets), "max_lora_rank": rank}
    with tempfile.TemporaryDirectory(prefix="rayinfer-bench-") as folder:
        variants = [_Variant("none", (), 0)]
        for name in targets:
            saved = save_random_adapters(Path(folder) / name, resolve_model(model), TARGETS[name], rank, most)
            requests = [LoRARequest(f"{name}-{index}", index, str(path)) for index, path in enumerate(saved.folders)]
            variants += [_Variant(name, requests[:number], saved.num_bytes * min(number, most)) for number in numbers]
        gb_s = memory_read_gb_s(len(usable_cpus()))
        with LLM(model, enable_prefix_caching=False, enable_lora=True, **{**all_slots, **settings}) as llm:
            seconds = _measure(llm, variants, num_streams, num_tokens, num_rounds, log)
            kernels = llm.description.kernels
    results = [
        _result(variant, num_streams, seconds[0], times, gb_s)
        for variant, times in zip(variants[1:], seconds[1:], strict=True)
    ]
    return AdapterReport(
        command=command,
        model=model,
        kernels=kernels,
        rank=rank,
        num_streams=num_streams,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        read_gb_s=round(gb_s, 1),
        results=results,
    )


def _measure(
    llm: LLM, variants: Sequence[_Variant], num_streams: int, num_tokens: int, num_rounds: int, log: Log
) -> list[list[float]]:
    """Return the seconds a token of each variant in every round; the first round reads the adapters and warms up."""
    lengths = (PROMPT_TOKENS, PROMPT_TOKENS), (num_tokens, num_tokens)
    prompts = offline_workload(num_streams, *lengths, vocab_size=min(1000, llm.description.vocab_size), seed=1).prompts
    times: list[list[float]] = [[] for _ in variants]
    for number in range(num_rounds + 1):
        log(f"round {number} of {num_rounds}")
        order = range(len(variants)) if number % 2 == 0 else range(len(variants) - 1, -1, -1)
        for index in order:
            length = num_tokens if number else 2
            params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
            started = time.perf_counter()
            requests = variants[index].requests(num_streams)
            outputs = llm.generate(prompts, params, lora_request=requests, use_tqdm=False)
            seconds = time.perf_counter() - started
            if failed := [each.outputs[0] for each in outputs if each.outputs[0].finish_reason != "length"]:
                raise RayinferError(f"{len(failed)} answers ended early, by {failed[0].finish_reason}")
            if number:
                times[index].append(seconds / (num_streams * num_tokens))
    return times


def _result(
    variant: _Variant, num_streams: int, base: Sequence[float], times: Sequence[float], gb_s: float
) -> AdapterResult:
    shares = [theirs / ours for ours, theirs in zip(times, base, strict=True)]
    step_s = statistics.median(base) * num_streams
    return AdapterResult(
        targets=variant.targets,
        num_adapters=len(variant.adapters),
        tok_s=round(1 / statistics.median(times), 1),
        base_tok_s=round(1 / statistics.median(base), 1),
        share=round(statistics.median(shares), 4),
        range=(round(min(shares), 4), round(max(shares), 4)),
        num_bytes=variant.num_bytes,
        bound=round(step_s / (step_s + variant.num_bytes / gb_s / 1e9), 4),
    )
