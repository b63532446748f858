"""Search for peers, in the peers' folder or at the user's path, and their versions."""

import subprocess
from pathlib import Path

from rayinfer.benchmark.peers.system_under_test import Setup

ASK_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
ANSWER_WITHIN_S = 60.0


def program_of(setup: Setup, peer: str, place: str) -> Path | None:
    """Find a peer's program: the one that the user names, else `place` in the peer's folder; None if there is none."""
    program = setup.programs.get(peer, setup.peers_folder / peer / place)
    return program if program.exists() else None


def package_version(python: Path, distribution: str) -> str | None:
    """Ask an interpreter for a package's version; None when it has none."""
    return answer_of([str(python), "-c", ASK_VERSION, distribution])


def answer_of(command: list[str]) -> str | None:
    """Run a short command and return what it prints; None when it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (answer.stdout or answer.stderr).strip() if answer.returncode == 0 else None
