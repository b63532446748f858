"""An engine in a process of its own, which starts afresh and runs the prompts that it is sent."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from rayinfer.errors import RayinferError

_WORKER = (sys.executable, "-m", "rayinfer.benchmark.offline.kv_store_worker")


class PromptRunner(Protocol):
    """An engine that runs prompts until it is left."""

    kernels: str

    def run(
        self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int], *, one_by_one: bool
    ) -> dict[str, Any]:
        """Run prompts; returns their times."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class EngineProcess:
    """A PromptRunner in a process of its own; its shared memory is in the folder `memory`."""

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
