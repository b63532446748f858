"""Use of the machine's KV block store: first tokens behind stored prefixes, and its cost where nothing is found."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.config import shared_memory_folder
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.model_config import read_model_config

COST_LENGTHS = (32, 256)  # of prompts and of outputs
_WORKER = (sys.executable, "-m", "rayinfer.benchmark.offline.kv_store_worker")

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixResult:
    """Time to the first token behind a prefix, from one place."""

    source: str
    median_ms: float
    range_ms: tuple[float, float]
    load_ms: float | None  # of the copy alone
    times_faster: float  # than computing it


@dataclass(frozen=True, kw_only=True, slots=True)
class CostResult:
    """Rates of one workload, of which nothing is stored, in turns; `slower` is of a token's time."""

    tiers: str
    plain_tok_s: float
    store_tok_s: float
    slower: float
    range: tuple[float, float]  # least and most of the rounds
    dropped_blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KVStoreReport:
    """Result of `rayinfer bench kv-store`."""

    command: str
    model: str
    kernels: str
    prefix_tokens: int
    num_prefixes: int
    num_requests: int
    num_rounds: int
    memory_folder: str
    prefixes: list[PrefixResult]
    costs: list[CostResult]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the times to first tokens and the costs."""
        rows = [
            (each.source, each.median_ms, *each.range_ms, each.load_ms, each.times_faster) for each in self.prefixes
        ]
        costs = []
        for cost in self.costs:
            low, high = (round(100 * part, 1) for part in cost.range)
            share = f"{low:+} to {high:+}"
            costs.append((cost.tiers, cost.plain_tok_s, cost.store_tok_s, round(100 * cost.slower, 1), share))
        return [
            Table(
                f"first token behind a prefix of {self.prefix_tokens} tokens, {self.model}",
                ("prefix", "median ms", "least", "most", "load alone ms", "times faster"),
                rows,
            ),
            Table(
                "throughput without hits",
                ("store", "without tok/s", "with tok/s", "slower by %", "rounds' range %"),
                costs,
            ),
        ]


class _Engine:
    """An engine in a process of its own."""

    def __init__(self, settings: Mapping[str, Any], memory: Path) -> None:
        command = ("env", f"RAYINFER_SHARED_MEMORY={memory}", *_WORKER, json.dumps(settings))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.kernels: str = self._answer()["kernels"]

    def run(
        self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int], *, one_by_one: bool
    ) -> dict[str, Any]:
        """Run prompts; returns their times."""
        assert self._process.stdin is not None
        asked = {"prompts": prompts, "output_lengths": output_lengths, "one_by_one": one_by_one}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RayinferError(f"the engine's process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run_kv_store_benchmark(
    model: str,
    settings: Mapping[str, Any],
    *,
    prefix_tokens: int,
    num_prefixes: int,
    num_requests: int,
    num_rounds: int,
    command: str,
    log: Log,
) -> KVStoreReport:
    """Measure prefixes one by one from each place, then rounds of a batch with and without a store."""
    config = read_model_config(resolve_model(model))
    vocab_size = min(1000, config.vocab_size)
    if prefix_tokens + 2 > config.longest_sequence:
        raise RayinferError(f"{prefix_tokens} tokens and an output are more than the model's {config.longest_sequence}")
    store: dict[str, Any] = {"kv_store_gib": 2.0} | {
        name: value for name, value in settings.items() if name.startswith("kv_store")
    }
    plain = {"model": model} | {name: value for name, value in settings.items() if not name.startswith("kv_store")}
    disk = {"kv_store_disk_gib": 4.0} | store
    with _folders() as (memory, disk_folder):
        disk |= {"kv_store_folder": str(disk_folder)}
        prompts = offline_workload(num_prefixes, (prefix_tokens,) * 2, (1, 1), vocab_size=vocab_size, seed=1).prompts
        prefixes, kernels = _measure_prefixes(plain | disk, prompts, memory, disk_folder, log)
        tiers = {"memory": plain | store, "memory and disk": plain | disk}
        costs = [
            _measure_cost(name, plain, each, num_requests, num_rounds, vocab_size, memory, log)
            for name, each in tiers.items()
        ]
    return KVStoreReport(
        command=command,
        model=model,
        kernels=kernels,
        prefix_tokens=prefix_tokens,
        num_prefixes=num_prefixes,
        num_requests=num_requests,
        num_rounds=num_rounds,
        memory_folder=str(shared_memory_folder().parent),
        prefixes=prefixes,
        costs=costs,
    )


@contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    """Make folders of the benchmark's own, in shared memory and in the working folder's file system."""
    beside = shared_memory_folder().parent
    with (
        tempfile.TemporaryDirectory(prefix="rayinfer-bench-", dir=beside) as memory,
        tempfile.TemporaryDirectory(prefix="rayinfer-bench-") as disk,
    ):
        yield Path(memory), Path(disk)


def _measure_prefixes(
    settings: Mapping[str, Any], prompts: Sequence[Sequence[int]], memory: Path, disk: Path, log: Log
) -> tuple[list[PrefixResult], str]:
    """Compute prefixes with one engine and use them with others, each in a process that starts afterwards."""
    lengths = [1] * len(prompts)
    results: list[PrefixResult] = []

    def measure(source: str, least_cached: int) -> str:
        log(f"prefixes: {source}")
        with _Engine(settings, memory) as engine:
            seen = engine.run(prompts, lengths, one_by_one=True)
        if min(seen["cached"]) < least_cached or (max(seen["cached"]) and not least_cached):
            raise RayinferError(f"{source}: {seen['cached']} tokens were found in the cache")
        times = [1e3 * each for each in seen["seconds"]]
        median = statistics.median(times)
        results.append(
            PrefixResult(
                source=source,
                median_ms=round(median, 2),
                range_ms=(round(min(times), 2), round(max(times), 2)),
                load_ms=round(statistics.median(seen["load_ms"]), 2) if seen["load_ms"] else None,
                times_faster=round(results[0].median_ms / median, 1) if results else 1.0,
            )
        )
        return engine.kernels

    most = len(prompts[0]) - 32  # a block, and the rest of another
    kernels = measure("computed", 0)
    measure("shared memory", most)
    _drop(memory.glob("*"))
    measure("disk, in the system's page cache", most)
    _drop(memory.glob("*"))
    _empty_page_cache(disk.glob("*.kv"))
    measure("disk", most)
    _drop(memory.glob("*"))
    return results, kernels


def _measure_cost(
    tiers: str,
    plain: Mapping[str, Any],
    with_store: Mapping[str, Any],
    num_requests: int,
    num_rounds: int,
    vocab_size: int,
    memory: Path,
    log: Log,
) -> CostResult:
    """Run batches of new prompts with both engines in turns."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    num_tokens, dropped = [], 0
    with _Engine(plain, memory) as without, _Engine(with_store, memory) as stored:
        for number in range(num_rounds + 1):  # the first one warms up
            log(f"throughput with {tiers}: round {number} of {num_rounds}")
            workload = offline_workload(
                num_requests, COST_LENGTHS, COST_LENGTHS, vocab_size=vocab_size, seed=100 + number
            )
            for is_stored in (False, True) if number % 2 else (True, False):
                engine = stored if is_stored else without
                seen = engine.run(workload.prompts, workload.output_lengths, one_by_one=False)
                if number:
                    seconds[is_stored].append(seen["seconds"])
                dropped = max(dropped, seen["dropped"])
            if number:
                num_tokens.append(sum(workload.output_lengths))
    _drop(memory.glob("*"))
    ratios = [ours / theirs - 1.0 for ours, theirs in zip(seconds[True], seconds[False], strict=True)]
    rates = {
        kind: statistics.median(count / each for count, each in zip(num_tokens, times, strict=True))
        for kind, times in seconds.items()
    }
    return CostResult(
        tiers=tiers,
        plain_tok_s=round(rates[False], 1),
        store_tok_s=round(rates[True], 1),
        slower=round(statistics.median(ratios), 4),
        range=(round(min(ratios), 4), round(max(ratios), 4)),
        dropped_blocks=dropped,
    )


def _drop(files: Iterator[Path]) -> None:
    for file in files:
        file.unlink()


def _empty_page_cache(files: Iterator[Path]) -> None:
    """Have the system forget what it has of files, which are read from the disk then."""
    for file in files:
        with file.open("r+b") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
