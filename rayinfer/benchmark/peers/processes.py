"""Processes of systems under test: engines that are paused except while measured, and servers."""

import asyncio
import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rayinfer.benchmark.load.load_client import LoadPlan, ServingReport, run_load
from rayinfer.benchmark.load.workloads import Workload
from rayinfer.benchmark.peers.cases import (
    BATCH_REQUESTS,
    HTTP_INPUT_LEN,
    HTTP_OUTPUT_LEN,
    LLAMA_BENCH_OPTIONS,
    Figures,
    http_requests,
    measure_engine,
    warm_up_workload,
)
from rayinfer.benchmark.peers.systems import LLAMA_CPP, SystemUnderTest
from rayinfer.errors import RayinferError

RUN_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 300.0
POLL_S = 0.05
GRACE_S = 10.0
SETTLE_S = 0.5  # an engine may have work left after its last reply, which must not wait until its next round
WARM_UP_OUTPUT_LEN = 4
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class MeasuredEngine(Protocol):
    """Engine that is open and can be measured again and again."""

    instructions: str  # those of its matrix products, as it reports them

    def measure(self, case: str, num_requests: int = BATCH_REQUESTS) -> Figures:
        """Run the case once, a batch with `num_requests`; raises RayinferError."""
        ...


@contextlib.contextmanager
def open_engine(
    system: SystemUnderTest, log: Path, vocab_size: int, timeout_s: float = RUN_TIMEOUT_S
) -> Iterator[MeasuredEngine]:
    """Open a system's engine and warm it up; on leaving, all of its processes end."""
    if system.name == LLAMA_CPP:
        yield LlamaBench(system.engine_command, log, timeout_s)
        return
    with started_process(system.engine_command, log, has_pipes=True) as process:
        yield EngineProcess(process, log, vocab_size, timeout_s)


class EngineProcess:
    """Client of `engine_worker.py`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, vocab_size: int, timeout_s: float) -> None:
        self._process, self._log, self._vocab_size, self._timeout_s = process, log, vocab_size, timeout_s
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.instructions = str(self._receive().get("instructions", ""))
        self._seconds_for(warm_up_workload(vocab_size))
        self._pause()

    def measure(self, case: str, num_requests: int = BATCH_REQUESTS) -> Figures:
        """Run the case once; raises RayinferError when it fails, takes too long or returns wrong lengths."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            return measure_engine(case, self._seconds_for, self._vocab_size, num_requests)
        finally:
            self._pause()

    def seconds_for(self, workload: Workload, adapters: Sequence[str | None]) -> float:
        """Run requests once, each with the adapter of a folder or none; raises RayinferError."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            return self._seconds_for(workload, adapters=list(adapters))
        finally:
            self._pause()

    def _pause(self) -> None:
        """Stop the engine's processes while others are measured: some spin while they wait."""
        time.sleep(SETTLE_S)
        os.killpg(self._process.pid, signal.SIGSTOP)

    def _seconds_for(self, workload: Workload, **more: object) -> float:
        request = {"prompts": workload.prompts, "lengths": workload.output_lengths, **more}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RayinferError(f"its process has ended: {last_line(self._log)}") from None
        reply = self._receive()
        if reply["lengths"] != workload.output_lengths:
            raise RayinferError("it returned outputs of other lengths than requested")
        return float(reply["seconds"])

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RayinferError(f"no reply for {self._timeout_s:.0f} s") from None
        if line is None:
            raise RayinferError(f"its process has ended: {last_line(self._log)}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RayinferError(reply["error"])
        return reply

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


class LlamaBench:
    """llama.cpp's own benchmark program, started anew for each round; its instructions are those of its build."""

    instructions = ""

    def __init__(self, command: Sequence[str], log: Path, timeout_s: float) -> None:
        self._command, self._log, self._timeout_s = command, log, timeout_s

    def measure(self, case: str, num_requests: int = BATCH_REQUESTS) -> Figures:
        """Run the case, which is no batch, once; raises RayinferError."""
        command = [*self._command, *LLAMA_BENCH_OPTIONS[case]]
        try:
            with self._log.open("a") as log:
                process = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=self._timeout_s
                )
        except subprocess.TimeoutExpired:
            raise RayinferError(f"llama-bench took more than {self._timeout_s:.0f} s") from None
        if process.returncode != 0:
            raise RayinferError(f"llama-bench failed: {last_line(self._log)}")
        return {case: float(json.loads(process.stdout)[0]["avg_ts"])}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """A server that is ready."""

    base_url: str
    ready_s: float  # from its start


@contextlib.contextmanager
def running_server(system: SystemUnderTest, log: Path, timeout_s: float = READY_TIMEOUT_S) -> Iterator[RunningServer]:
    """Start a system's server on a free port and wait until it is ready; raises RayinferError if it is not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    base_url = f"http://127.0.0.1:{port}"
    started = time.perf_counter()
    with started_process([part.replace("{port}", str(port)) for part in system.server_command], log) as process:
        while not _is_ready(base_url + system.ready_path):
            if process.poll() is not None:
                raise RayinferError(f"its server has ended: {last_line(log)}")
            if time.perf_counter() > started + timeout_s:
                raise RayinferError(f"its server is not ready in time: {last_line(log)}")
            time.sleep(POLL_S)
        yield RunningServer(base_url=base_url, ready_s=time.perf_counter() - started)


def measure_server(server: RunningServer, model: str, vocab_size: int, num_requests: int = BATCH_REQUESTS) -> Figures:
    """Load the server with 1, 8 and 32 streams; raises RayinferError when a request fails.

    Loads are as long as belongs to a batch of `num_requests`.
    """
    figures: Figures = {}
    for streams, num_loads in http_requests(num_requests).items():

        def load(num_requests: int, output_len: int, seed: int, streams: int = streams) -> ServingReport:
            plan = LoadPlan(
                base_url=server.base_url,
                model=model,
                num_requests=num_requests,
                input_len=HTTP_INPUT_LEN,
                output_len=output_len,
                concurrency=streams,
                vocab_size=vocab_size,
                seed=seed,
                reuse_connections=False,
            )
            return _checked(asyncio.run(run_load(plan)), num_requests * output_len)

        # Every load has prompts of its own, so that no server can have them in a cache.
        load(streams, WARM_UP_OUTPUT_LEN, 1000 + streams)
        report = load(num_loads, HTTP_OUTPUT_LEN, streams)
        assert report.ttft is not None
        figures[f"http_{streams}"] = report.out_tok_s
        figures[f"ttft_p50_{streams}"], figures[f"ttft_p99_{streams}"] = report.ttft.p50, report.ttft.p99
    return figures


def _checked(report: ServingReport, num_tokens: int) -> ServingReport:
    """Return a load's report; raises RayinferError unless every request returned every token."""
    if report.failed:
        raise RayinferError(f"{report.failed} of {report.num_requests} requests failed: {'; '.join(report.errors)}")
    if report.output_tokens != num_tokens:
        raise RayinferError(f"it returned {report.output_tokens} tokens instead of {num_tokens}")
    return report


def _is_ready(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def started_process(command: Sequence[str], log: Path, *, has_pipes: bool = False) -> "Iterator[subprocess.Popen[str]]":
    """Run a command in a process group of its own, which is terminated on leaving, and killed after a while."""
    pipe = subprocess.PIPE if has_pipes else None
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or stderr,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def last_line(log: Path) -> str:
    """Return the last line of a program's log, which may hold the reason of its end."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][:300] if lines else 'no output'} ({log})"
