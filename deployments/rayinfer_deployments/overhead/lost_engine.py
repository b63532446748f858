"""Pause of conversations whose engine is killed, with and without a KV block store: run it with `python -m`."""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.report import Environment, Table, describe_environment, write_json, write_markdown
from rayinfer.config import DEFAULT_MODEL, shared_memory_folder
from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.process_tree import descendants

_START_S, _STREAM_S = 180.0, 600.0
_NUM_WAITED_TOKENS = 20  # of every stream, before and after the kill
_COMMAND = (sys.executable, "-c", "from rayinfer_deployments.cli import main; main()")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossResult:
    """Pauses that clients saw when one of two engines was killed."""

    store: str
    num_moved: int
    median_pause_s: float  # of the streams that moved: their longest times between two chunks since the kill
    longest_pause_s: float
    num_loaded_tokens: int  # from the store


@dataclass(frozen=True, kw_only=True, slots=True)
class LossReport:
    """Result of the command."""

    command: str
    num_streams: int
    prefix_tokens: int
    results: list[LossResult]
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the pauses."""
        rows = [tuple(asdict(each).values()) for each in self.results]
        title = f"one of two engines killed under {self.num_streams} conversations of {self.prefix_tokens} tokens"
        return [Table(title, ("store", "moved", "median pause s", "longest s", "tokens loaded"), rows)]


@contextmanager
def _service(arguments: Sequence[str], port: int) -> Iterator["_Service"]:
    """Run `rayinfer serve` with two engines and shared memory of its own until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="rayinfer-bench-", dir=shared_memory_folder().parent) as memory:
        environment = ("env", f"RAYINFER_SHARED_MEMORY={memory}")
        command = (*environment, *_COMMAND, "serve", *arguments, "--replicas", "2", "--port", str(port))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            service = _Service(process.pid, f"http://127.0.0.1:{port}")
            service.wait_until_ready()
            yield service
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


class _Service:
    """A running service, from outside."""

    def __init__(self, pid: int, url: str) -> None:
        self.url = url
        self._pid = pid

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._has_two_engines():
            if time.monotonic() > deadline:
                raise RayinferError("the service has not become ready")
            time.sleep(0.5)

    def kill_an_engine(self) -> None:
        """Kill the process of one engine."""
        engines = [each for each in descendants(self._pid) if each.title.startswith("ray::EngineActor")]
        if len(engines) != 2:
            raise RayinferError(f"the service has {len(engines)} engines: {[each.title for each in engines]}")
        os.kill(engines[0].pid, signal.SIGKILL)

    def metric(self, name: str) -> float:
        """Sum a metric's samples."""
        return sum(value for found, value in self._samples() if found == name)

    def _has_two_engines(self) -> bool:
        try:
            is_ready = httpx.get(f"{self.url}/ready", trust_env=False).status_code == 200
            return is_ready and sum(name == "rayinfer_kv_blocks_total" for name, _ in self._samples()) == 2
        except httpx.TransportError:
            return False

    def _samples(self) -> list[tuple[str, float]]:
        text = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=60).text
        return [
            (sample.name, sample.value) for family in text_string_to_metric_families(text) for sample in family.samples
        ]


async def _read(http: httpx.AsyncClient, body: dict[str, Any], times: list[float]) -> None:
    """Send a prompt and note when each chunk comes."""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                if "error" in json.loads(line.removeprefix("data: ")):
                    raise RayinferError(f"a stream failed: {line}")
                times.append(time.monotonic())


async def _pauses(service: _Service, model: str, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Stream all prompts, kill an engine once all have tokens; returns their longest times between chunks since."""
    times: list[list[float]] = [[] for _ in prompts]
    async with httpx.AsyncClient(base_url=service.url, timeout=_STREAM_S, trust_env=False) as http:
        body = {"model": model, "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True}
        streams = [
            asyncio.create_task(_read(http, body | {"prompt": prompt}, each))
            for prompt, each in zip(prompts, times, strict=True)
        ]
        killed_at = 0.0
        for is_after in (False, True):
            deadline = time.monotonic() + _STREAM_S
            num_seen = [len(each) for each in times]
            while any(len(each) < seen + _NUM_WAITED_TOKENS for each, seen in zip(times, num_seen, strict=True)):
                if time.monotonic() > deadline or any(stream.done() for stream in streams):
                    raise RayinferError(f"streams did not go on: {[len(each) for each in times]} chunks")
                await asyncio.sleep(0.05)
            if not is_after:
                service.kill_an_engine()
                killed_at = time.monotonic()
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return [_longest_gap(each, killed_at) for each in times]


def _longest_gap(times: Sequence[float], since: float) -> float:
    return max(after - before for before, after in itertools.pairwise(times) if after > since)


def _measure(
    store: str, arguments: Sequence[str], model: str, prompts: Sequence[Sequence[int]], port: int
) -> LossResult:
    with _service([model, *arguments], port) as service:
        pauses = sorted(asyncio.run(_pauses(service, model, prompts)))
        num_moved = int(service.metric("rayinfer_migrations_total"))
        if not num_moved:
            raise RayinferError("no stream moved: it was another process that was killed, or its streams had ended")
        moved = pauses[-num_moved:]
        return LossResult(
            store=store,
            num_moved=num_moved,
            median_pause_s=round(statistics.median(moved), 3),
            longest_pause_s=round(moved[-1], 3),
            num_loaded_tokens=int(service.metric("rayinfer_kv_store_hits_total")),
        )


def main() -> None:
    """Measure services one after the other, and print their pauses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prefix-tokens", type=int, default=2000)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--output", type=Path, help="folder for lost-engine.md and .json")
    asked = parser.parse_args()
    prompts = offline_workload(asked.streams, (asked.prefix_tokens,) * 2, (1, 1), vocab_size=1000, seed=3).prompts
    variants = {"none": [], "shared memory": ["--kv-store-gib", "2"]}
    results = [
        _measure(store, arguments, asked.model, prompts, asked.port + number)
        for number, (store, arguments) in enumerate(variants.items())
    ]
    report = LossReport(
        command=f"python -m rayinfer_deployments.overhead.lost_engine {' '.join(sys.argv[1:])}".strip(),
        num_streams=asked.streams,
        prefix_tokens=asked.prefix_tokens,
        results=results,
    )
    for table in report.tables():
        sys.stdout.write("\n".join([table.title, *table.lines(), ""]))
    if asked.output is not None:
        note = f"{report.environment}: `{report.command}`"
        write_markdown(asked.output / "lost-engine.md", "Engine killed under conversations", report.tables(), note)
        write_json(report, asked.output / "lost-engine.json")


if __name__ == "__main__":
    main()
