"""Runtimes beside each other: their processes, which are paused except while measured."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayinfer.benchmark.peers.processes import last_line, started_process
from rayinfer.benchmark.peers.systems import NOT_INSTALLED, package_version
from rayinfer.benchmark.predictors.passages import NUM_CALIBRATION, passages
from rayinfer.benchmark.predictors.rows import OWN
from rayinfer.errors import RayinferError

WORKER = Path(__file__).with_name("runtime_worker.py")
OPEN_TIMEOUT_S = 1800.0  # exports take minutes
RUN_TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Programs:
    """Models, threads, and where the runtimes are."""

    text_model: Path
    image_model: Path
    num_threads: int
    exports: Path  # of models in the peers' formats
    pythons: Mapping[str, Path] = field(default_factory=dict)  # interpreters, by peer

    def missing(self, runtime: str) -> str | None:
        """Return why a runtime cannot be measured."""
        if runtime == OWN:
            return None
        python = self.pythons.get(runtime)
        if python is None or not python.exists():
            return NOT_INSTALLED
        return None if package_version(python, runtime) else f"{python} has no {runtime}"

    def version(self, runtime: str) -> str:
        """Return a runtime's version."""
        return package_version(self.pythons.get(runtime, Path(sys.executable)), runtime) or "unknown"

    def command(self, runtime: str, *, is_image: bool, is_int8: bool) -> list[str]:
        """Return the command of a runtime's process."""
        model = self.image_model if is_image else self.text_model
        settings = {
            "model": str(model),
            "num_threads": self.num_threads,
            "is_image": is_image,
            "is_int8": is_int8,
            "engine": {"quantization": "int8-dynamic"} if is_int8 else {"dtype": "float32"},
            "exports": str(self.exports / model.name),
            "calibration": passages(NUM_CALIBRATION, seed=7),
        }
        variables = [f"OMP_NUM_THREADS={self.num_threads}", "TOKENIZERS_PARALLELISM=false", "HF_HUB_OFFLINE=1"]
        python = self.pythons.get(runtime, Path(sys.executable))
        return ["env", *variables, str(python), str(WORKER), runtime, json.dumps(settings)]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of each repetition of some work, and of the processor."""

    seconds: list[float]
    cpu_s: list[float]


class RuntimeProcess:
    """Client of `runtime_worker.py`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._receive(OPEN_TIMEOUT_S)
        self._signal(signal.SIGSTOP)

    def run(self, **work: Any) -> Took:
        """Run work, as `runtime_worker.py` has it; raises RayinferError."""
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
            return Took(**self._receive(RUN_TIMEOUT_S))
        except BrokenPipeError:
            raise RayinferError(f"its process has ended: {last_line(self._log)}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise RayinferError(f"no reply for {timeout_s:.0f} s") from None
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


class Runtimes:
    """Open runtimes by name and kind; each is opened once, and all end on leaving."""

    def __init__(self, programs: Programs, logs: Path) -> None:
        self.programs = programs
        self._logs = logs
        self._open: dict[tuple[str, bool, bool], RuntimeProcess] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Runtimes":
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def get(self, runtime: str, *, is_image: bool = False, is_int8: bool = False) -> RuntimeProcess:
        """Return a runtime's process, starting it first; raises RayinferError."""
        key = runtime, is_image, is_int8
        if key not in self._open:
            log = self._logs / f"{runtime}{'-images' * is_image}{'-int8' * is_int8}.log"
            command = self.programs.command(runtime, is_image=is_image, is_int8=is_int8)
            process = self._stack.enter_context(started_process(command, log, has_pipes=True))
            self._open[key] = RuntimeProcess(process, log)
        return self._open[key]


@contextlib.contextmanager
def busy_process(cpus: Sequence[int]) -> Iterator[None]:
    """Keep one core busy by another process."""
    program = f"import os; os.sched_setaffinity(0, [{cpus[-1]}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait()
