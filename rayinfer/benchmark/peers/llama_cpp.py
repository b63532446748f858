"""llama.cpp: the programs that its build makes, and the model as GGUF files."""

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rayinfer.benchmark.peers.cases import HTTP_REQUESTS, PREFILL, PREFILL_LEN, STREAM, STREAM_LEN
from rayinfer.benchmark.peers.engine_process import last_line
from rayinfer.benchmark.peers.installed import answer_of, program_of
from rayinfer.benchmark.peers.system_under_test import Contender, Figures, Missing, ServerCommand, Setup
from rayinfer.errors import RayinferError

NAME = "llama.cpp"
FILES = {"bfloat16": ("bf16.gguf", 16), "q8_0": ("q8_0.gguf", 8), "q4_1": ("q4_1.gguf", 4)}
CONTEXT_PER_STREAM = 256
TIMEOUT_S = 300.0
WORKS = {
    STREAM: ["-p", "0", "-n", str(STREAM_LEN), "-d", str(STREAM_LEN)],  # -d: tokens that are there before
    PREFILL: ["-p", str(PREFILL_LEN), "-n", "0"],
}


class LlamaBench:
    """llama.cpp's own benchmark program, started anew for each turn; it has no batch of requests of mixed lengths."""

    works = tuple(WORKS)

    def __init__(self, command: list[str], version: str, log: Path) -> None:
        self._command = command
        self.version = version
        self._log = log

    def measure(self, work: str) -> Figures:
        """Do the work once; raises RayinferError."""
        try:
            with self._log.open("a") as log:
                answer = subprocess.run(
                    [*self._command, *WORKS[work]], stdout=subprocess.PIPE, stderr=log, text=True, timeout=TIMEOUT_S
                )
        except subprocess.TimeoutExpired:
            raise RayinferError(f"llama-bench took more than {TIMEOUT_S:.0f} s") from None
        if answer.returncode != 0:
            raise RayinferError(f"llama-bench failed: {last_line(self._log)}")
        return {work: float(json.loads(answer.stdout)[0]["avg_ts"])}

    def pause(self) -> None:
        """Nothing runs between turns."""

    def resume(self) -> None:
        """Nothing runs between turns."""


def llama_cpp_contenders(setup: Setup) -> list[Contender | Missing]:
    """Find the files of the model that are there."""
    bench = program_of(setup, NAME, "llama-bench")
    if bench is None:
        return [Missing(label=f"{NAME} {mode}", reason="it is not installed") for mode in FILES]
    version = _version(bench)
    return [_contender(setup, bench, mode, version) for mode in FILES]


def _contender(setup: Setup, bench: Path, mode: str, version: str) -> Contender | Missing:
    file, bits = FILES[mode]
    model = setup.converted_models / file
    if not model.is_file():
        return Missing(label=f"{NAME} {mode}", reason=f"there is no {model}")
    threads = ["-m", str(model), "-t", str(setup.num_threads)]
    most_streams = max(HTTP_REQUESTS)
    program = bench.with_name("llama-server")
    server = [str(program), *threads, "-np", str(most_streams), "--no-webui"]
    server += [
        "-c",
        str(most_streams * CONTEXT_PER_STREAM),
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--no-cache-prompt",
    ]

    @contextlib.contextmanager
    def open_bench(log: Path) -> Iterator[LlamaBench]:
        command = setup.with_all_cores([str(bench), *threads, "-o", "json", "-r", "3"])
        yield LlamaBench(command, version, log)

    return Contender(
        name=NAME,
        mode=mode,
        weight_bits=bits,
        open_engine=open_bench,
        server=None
        if not program.exists()
        else ServerCommand(arguments=setup.with_all_cores(server), ready_path="/health", model=NAME, version=version),
    )


def _version(bench: Path) -> str:
    answer = answer_of([str(bench.with_name("llama-server")), "--version"])
    found = re.search(r"version: (.*)", answer or "")
    return found.group(1) if found else "unknown"
