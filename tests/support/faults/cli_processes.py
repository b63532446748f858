"""The `rayinfer` command in a process of its own, and the processes that it starts."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from rayinfer_deployments.cluster.process_tree import Process, descendants, read_process
from support.services.free_ports import free_port

COMMAND = [sys.executable, "-c", "from rayinfer_deployments.cli import main; main()"]
START_S = 120.0  # other work may share the machine


def start_as_in_the_background() -> None:
    """Start with SIGINT ignored, as a shell's `&` does, and with SIGHUP heard even where the tests run under nohup."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run_cli(*arguments: object, cache: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=START_S,
        env=os.environ | {"RAYINFER_CACHE": str(cache)},
    )


class ServeCommand:
    """A running `rayinfer serve`."""

    def __init__(
        self, *arguments: object, cache: Path, command: Sequence[str] = COMMAND, environment: Mapping[str, str] = {}
    ) -> None:
        self.port = free_port()
        self.cache = cache
        self.url = f"http://127.0.0.1:{self.port}"
        self.lines: list[str] = []  # what it has written so far
        self._process = subprocess.Popen(
            [*command, "serve", *map(str, arguments), "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            preexec_fn=start_as_in_the_background,
            env=os.environ | environment | {"RAYINFER_CACHE": str(cache)},
        )
        self._unread: queue.Queue[str | None] = queue.Queue()  # None: it has ended
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for_line(self, part: str, within_s: float = START_S) -> str:
        """Read on until a line holds `part`; raises AssertionError with all that was written when none comes."""
        deadline = time.monotonic() + within_s
        with contextlib.suppress(queue.Empty):
            while (line := self._unread.get(timeout=deadline - time.monotonic())) is not None:
                self.lines.append(line)
                if part in line:
                    return line
        raise AssertionError(f"no line with {part!r} came, but {self.lines}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._unread.put(line.rstrip())
        self._unread.put(None)

    def processes(self) -> list[Process]:
        """List the command's process and all below it."""
        own = read_process(self._process.pid)
        return [own, *descendants(own.pid)] if own else []

    def wait_for_process(self, program: str) -> Process:
        """Return the first process below the command that runs `program`, as soon as there is one."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for process in descendants(self._process.pid):
                if Path(process.title.partition(" ")[0]).name == program:
                    return process
            time.sleep(0.02)
        raise AssertionError(f"no {program} was started")

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self._process.send_signal(number)
        return self._process.wait(timeout=30)

    def end(self) -> None:
        """Make sure that nothing is left, whatever the test did."""
        for process in reversed(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def serving(
    *arguments: object, cache: Path, command: Sequence[str] = COMMAND, environment: Mapping[str, str] = {}
) -> Iterator[ServeCommand]:
    """Start `rayinfer serve`; it need not be ready yet."""
    service = ServeCommand(*arguments, cache=cache, command=command, environment=environment)
    try:
        yield service
    finally:
        service.end()


def listed(command: ServeCommand, role: str) -> list[dict[str, Any]]:
    """List a service's processes of one role as `rayinfer ps` does."""
    rows = json.loads(run_cli("ps", "--json", cache=command.cache).stdout)
    return [row for row in rows if row["role"] == role]


def engine_pids(command: ServeCommand, names: Sequence[str]) -> dict[str, int]:
    """Map engines as the live view names them to their processes: both end with the replica's id."""
    rows = listed(command, "engine")
    return {name: next(row["pid"] for row in rows if row["replica"].endswith(name[-8:])) for name in names}


def processes_with(setting: str) -> list[Process]:
    """List the machine's processes in whose environment NAME=VALUE stands, whatever their parents are by now."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and setting.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(read_process(int(entry.name)))
    return [process for process in found if process is not None]


def is_listening(url: str) -> bool:
    """Say whether anything answers at all."""
    try:
        httpx.get(url, timeout=2.0, trust_env=False)
    except httpx.TransportError:
        return False
    return True
