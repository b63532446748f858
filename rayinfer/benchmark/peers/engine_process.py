"""An engine under its own interpreter, kept alive between its runs and stopped while others are measured."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from rayinfer.benchmark.load.workloads import Workload
from rayinfer.benchmark.peers.cases import ENGINE_WORKS, measure_engine, warm_up_workload
from rayinfer.benchmark.peers.system_under_test import Figures, Setup
from rayinfer.errors import RayinferError

ENGINES = Path(__file__).parent / "engines"
ANSWER_TIMEOUT_S = 600.0
GRACE_S = 10.0


class EngineProcess:
    """The other end of `engines/worker.py`; use it through `engine_process`."""

    works = ENGINE_WORKS

    def __init__(self, process: "subprocess.Popen[str]", setup: Setup, log: Path, timeout_s: float) -> None:
        self._process = process
        self._vocab_size = setup.vocab_size
        self._log = log
        self._timeout_s = timeout_s
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.version = str(self._message()["version"])
        self._seconds_for(warm_up_workload(self._vocab_size))

    def measure(self, work: str) -> Figures:
        """Do the work once; raises RayinferError when it fails, takes too long or gives wrong lengths."""
        return measure_engine(work, self._seconds_for, self._vocab_size)

    def pause(self) -> None:
        """Stop the engine's processes: some spin while they wait."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the engine's processes."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def _seconds_for(self, workload: Workload) -> float:
        work = {"prompts": workload.prompts, "lengths": workload.output_lengths}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RayinferError(f"its process has ended: {last_line(self._log)}") from None
        message = self._message()
        if message["lengths"] != workload.output_lengths:
            raise RayinferError("it gave answers of other lengths than asked for")
        return float(message["seconds"])

    def _message(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            raise RayinferError(f"it gave no answer for {self._timeout_s:.0f} s") from None
        if line is None:
            raise RayinferError(f"its process has ended: {last_line(self._log)}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RayinferError(message["error"])
        return message

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextlib.contextmanager
def engine_process(
    adapter: Path,
    settings: dict[str, Any],
    *,
    setup: Setup,
    log: Path,
    python: Path = Path(sys.executable),
    variables: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Iterator[EngineProcess]:
    """Open the adapter's engine under `python` and warm it up; on leaving, every process of it ends."""
    arguments = [str(python), str(ENGINES / "worker.py"), str(adapter), json.dumps(settings)]
    with started_process(setup.with_all_cores(arguments, **variables), log, has_pipes=True) as process:
        yield EngineProcess(process, setup, log, timeout_s)


@contextlib.contextmanager
def started_process(arguments: list[str], log: Path, *, has_pipes: bool = False) -> "Iterator[subprocess.Popen[str]]":
    """Run a command in a process group of its own, which is asked to end on leaving and then made to."""
    pipe = subprocess.PIPE if has_pipes else None
    with log.open("w") as stderr:
        process = subprocess.Popen(
            arguments,
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or stderr,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)
        for stream in (process.stdin, process.stdout):
            _close(stream)


def last_line(log: Path) -> str:
    """Return the last line of a program's output, which may name the reason of its end."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1][:300] if lines else 'it said nothing'} ({log})"


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close(stream: IO[str] | None) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):
            stream.close()
