"""A server process of any system: start, readiness, closed-loop load, and end."""

import asyncio
import contextlib
import http.client
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rayinfer.benchmark.load.load_client import LoadPlan, run_load
from rayinfer.benchmark.peers.cases import HTTP_INPUT_LEN, HTTP_OUTPUT_LEN, HTTP_REQUESTS
from rayinfer.benchmark.peers.engine_process import last_line, started_process
from rayinfer.benchmark.peers.system_under_test import Figures, ServerCommand
from rayinfer.errors import RayinferError

READY_TIMEOUT_S = 300.0
POLL_S = 0.05
WARM_UP_OUTPUT_LEN = 4
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """A server that is ready."""

    base_url: str
    ready_s: float  # from its start


@contextlib.contextmanager
def running_server(command: ServerCommand, log: Path, timeout_s: float = READY_TIMEOUT_S) -> Iterator[RunningServer]:
    """Start a server on a free port and wait until it is ready; raises RayinferError when it does not come up."""
    port = _free_port()
    base_url = f"http://127.0.0.1:{port}"
    started = time.perf_counter()
    with started_process([part.replace("{port}", str(port)) for part in command.arguments], log) as process:
        _wait_until_ready(base_url + command.ready_path, process, log, started + timeout_s)
        yield RunningServer(base_url=base_url, ready_s=time.perf_counter() - started)


def measure_server(server: RunningServer, model: str, vocab_size: int) -> Figures:
    """Load the server with 1, 8 and 32 streams; raises RayinferError when a request fails."""
    figures: Figures = {}
    for streams, num_requests in HTTP_REQUESTS.items():
        # Every load has prompts of its own, so that no server can have them in a cache.
        _load(server, model, streams, streams, WARM_UP_OUTPUT_LEN, vocab_size, seed=1000 + streams)
        load = _load(server, model, streams, num_requests, HTTP_OUTPUT_LEN, vocab_size, seed=streams)
        figures |= {f"http_{streams}": load.out_tok_s, f"ttft_p50_{streams}": load.p50, f"ttft_p99_{streams}": load.p99}
    return figures


@dataclass(frozen=True, slots=True)
class _Load:
    out_tok_s: float
    p50: float  # of the time to the first token, in ms
    p99: float


def _load(
    server: RunningServer, model: str, streams: int, num_requests: int, output_len: int, vocab_size: int, seed: int
) -> _Load:
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
    report = asyncio.run(run_load(plan))
    if report.failed or report.ttft is None:
        raise RayinferError(f"{report.failed} of {num_requests} requests failed: {'; '.join(report.errors)}")
    if report.output_tokens != num_requests * output_len:
        raise RayinferError(f"it gave {report.output_tokens} tokens instead of {num_requests * output_len}")
    return _Load(report.out_tok_s, report.ttft.p50, report.ttft.p99)


def _wait_until_ready(url: str, process: "subprocess.Popen[str]", log: Path, deadline: float) -> None:
    while not _answers(url):
        if process.poll() is not None:
            raise RayinferError(f"its server has ended: {last_line(log)}")
        if time.perf_counter() > deadline:
            raise RayinferError(f"its server is not ready in time: {last_line(log)}")
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
