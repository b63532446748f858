"""Tools that `make check-k8s` installs, and the objects in their output."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "build" / "k8s" / "bin"
K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())


def run_tool(name: str, *arguments: str | Path) -> str:
    done = subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects_in(text: str) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]
