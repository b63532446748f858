"""Use of the machine's KV block store: first tokens behind stored prefixes, and its cost where nothing is found."""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.offline.engine_process import EngineProcess, PromptRunner
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.config import shared_memory_folder
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.model_config import read_model_config

COST_LENGTHS = (32, 256)  # of prompts and of outputs
NO_STORE = "none, a second engine"  # how far two equal engines differ
Log = Callable[[str], None]
NewEngine = Callable[[Mapping[str, Any], Path], PromptRunner]  # by settings and the folder of shared memory


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
    num_streams: int
    num_requests: int
    num_rounds: int
    prefixes: list[PrefixResult]
    streams_s: dict[str, float]  # until all streams at once have a token, by where their prefixes come from
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
        streams = [(source, seconds) for source, seconds in self.streams_s.items()]
        return [
            Table(
                f"first token behind a prefix of {self.prefix_tokens} tokens, {self.model}",
                ("prefix", "median ms", "least", "most", "load alone ms", "times faster"),
                rows,
            ),
            Table(
                f"{self.num_streams} streams of {self.prefix_tokens} tokens that come at once, as from a lost engine",
                ("prefixes", "seconds until each has a token"),
                streams,
            ),
            Table(
                "throughput without hits",
                ("store", "without tok/s", "with tok/s", "slower by %", "rounds' range %"),
                costs,
            ),
        ]


def run_kv_store_benchmark(
    model: str,
    settings: Mapping[str, Any],
    *,
    prefix_tokens: int,
    num_prefixes: int,
    num_streams: int,
    num_requests: int,
    num_rounds: int,
    command: str,
    log: Log,
    new_engine: NewEngine = EngineProcess,
) -> KVStoreReport:
    """Measure prefixes one by one from each place, then rounds of a batch with and without a store."""
    config = read_model_config(resolve_model(model))
    vocab_size = min(1000, config.vocab_size)
    if prefix_tokens + 2 > config.longest_sequence:
        raise RayinferError(f"{prefix_tokens} tokens and an output are more than the model's {config.longest_sequence}")
    store: dict[str, Any] = {"kv_store_gib": 2.0, "kv_store_persists": True} | {
        name: value for name, value in settings.items() if name.startswith("kv_store")
    }
    plain = {"model": model} | {name: value for name, value in settings.items() if not name.startswith("kv_store")}
    disk = {"kv_store_disk_gib": 4.0} | store
    with _folders() as (memory, disk_folder):
        disk |= {"kv_store_folder": str(disk_folder)}
        prompts = offline_workload(num_prefixes, (prefix_tokens,) * 2, (1, 1), vocab_size=vocab_size, seed=1).prompts
        prefixes, kernels = _measure_prefixes(plain | disk, prompts, memory, disk_folder, new_engine, log)
        streams_s = _measure_streams(plain | store, prefix_tokens, num_streams, vocab_size, memory, new_engine, log)
        tiers = {NO_STORE: plain, "memory": plain | store, "memory and disk": plain | disk}
        costs = _measure_costs(plain, tiers, num_requests, num_rounds, vocab_size, memory, new_engine, log)
    return KVStoreReport(
        command=command,
        model=model,
        kernels=kernels,
        prefix_tokens=prefix_tokens,
        num_prefixes=num_prefixes,
        num_streams=num_streams,
        num_requests=num_requests,
        num_rounds=num_rounds,
        prefixes=prefixes,
        streams_s=streams_s,
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
    settings: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    memory: Path,
    disk: Path,
    new_engine: NewEngine,
    log: Log,
) -> tuple[list[PrefixResult], str]:
    """Compute prefixes with one engine and use them with others, each in a process that starts afterwards."""
    lengths = [1] * len(prompts)
    results: list[PrefixResult] = []

    def measure(source: str, least_cached: int) -> str:
        log(f"prefixes: {source}")
        with new_engine(settings, memory) as engine:
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


def _measure_streams(
    settings: Mapping[str, Any],
    prefix_tokens: int,
    num_streams: int,
    vocab_size: int,
    memory: Path,
    new_engine: NewEngine,
    log: Log,
) -> dict[str, float]:
    """Have one engine compute many prefixes at once, and another in a new process find them."""
    workload = offline_workload(num_streams, (prefix_tokens,) * 2, (1, 1), vocab_size=vocab_size, seed=2)
    seconds = {}
    for source in ("computed", "shared memory"):
        log(f"{num_streams} streams at once: {source}")
        with new_engine(settings, memory) as engine:
            seen = engine.run(workload.prompts, workload.output_lengths, one_by_one=False)
            seconds[source] = round(seen["seconds"], 3)
    _drop(memory.glob("*"))
    return seconds


def _measure_costs(
    plain: Mapping[str, Any],
    tiers: Mapping[str, Mapping[str, Any]],
    num_requests: int,
    num_rounds: int,
    vocab_size: int,
    memory: Path,
    new_engine: NewEngine,
    log: Log,
) -> list[CostResult]:
    """Run batches of new prompts with an engine without a store and with one of each kind, in rotating order."""
    seconds: dict[str, list[float]] = {name: [] for name in ("", *tiers)}
    dropped = dict.fromkeys(seconds, 0)
    num_tokens = []
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(new_engine(tiers.get(name, plain), memory / f"of-{index}"))
            for index, name in enumerate(seconds)
        }
        for number in range(num_rounds + 1):  # the first one warms up
            log(f"throughput: round {number} of {num_rounds}")
            workload = offline_workload(
                num_requests, COST_LENGTHS, COST_LENGTHS, vocab_size=vocab_size, seed=100 + number
            )
            for index in range(len(seconds)):
                name = list(seconds)[(index + number) % len(seconds)]
                seen = engines[name].run(workload.prompts, workload.output_lengths, one_by_one=False)
                dropped[name] = seen["dropped"]
                if number:
                    seconds[name].append(seen["seconds"])
            if number:
                num_tokens.append(sum(workload.output_lengths))
    rates = {
        name: round(statistics.median(count / each for count, each in zip(num_tokens, times, strict=True)), 1)
        for name, times in seconds.items()
    }
    results = []
    for name in tiers:
        ratios = [ours / theirs - 1.0 for ours, theirs in zip(seconds[name], seconds[""], strict=True)]
        results.append(
            CostResult(
                tiers=name,
                plain_tok_s=rates[""],
                store_tok_s=rates[name],
                slower=round(statistics.median(ratios), 4),
                range=(round(min(ratios), 4), round(max(ratios), 4)),
                dropped_blocks=dropped[name],
            )
        )
    return results


def _drop(files: Iterator[Path]) -> None:
    for file in files:
        file.unlink()


def _empty_page_cache(files: Iterator[Path]) -> None:
    """Have the system forget what it has of files, which are read from the disk then."""
    for file in files:
        with file.open("r+b") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
