"""Resumption of a comparison: its time budget, and the digest of what all runs of a case have in common."""

import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rayinfer.benchmark.peers.cases import ENGINE_CASES
from rayinfer.benchmark.peers.systems import Setup, SystemUnderTest

OWN_PACKAGES = ("rayinfer", "rayinfer_kernels", "rayinfer_deployments")
SOURCE_SUFFIXES = frozenset({".py", ".cpp", ".h"})


class TimeBudget:
    """Time that a comparison may take; it is looked at between runs, so that none is cut short."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    @property
    def is_spent(self) -> bool:
        """Return whether no run should begin any more."""
        return self._end is not None and self._clock() >= self._end


def configuration_digest(
    case: str, systems: Iterable[SystemUnderTest], setup: Setup, num_requests: int, sources: str
) -> str:
    """Digest a case's systems with their commands and versions, machine, sizes and our own sources.

    Rounds are left out: more of them may be added to those measured.
    """
    commands = {
        system.label: [system.version, list(system.engine_command if case in ENGINE_CASES else system.server_command)]
        for system in systems
    }
    machine = [setup.processor, len(setup.cpus), sorted(setup.cpu_flags), setup.kernels]
    return _digest(json.dumps([case, setup.model, setup.vocab_size, num_requests, machine, commands, sources]).encode())


def source_digest(packages: Iterable[str] = OWN_PACKAGES) -> str:
    """Digest the sources of our own packages, those that are installed."""
    specs = filter(None, map(importlib.util.find_spec, packages))
    folders = [Path(spec.origin).parent for spec in specs if spec.origin is not None]
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in SOURCE_SUFFIXES]
    return _digest(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
