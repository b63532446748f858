"""Manifests as kustomize renders them, with the tools that `make check-k8s` installs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build" / "k8s" / "bin"
K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())


def run_tool(name: str, *arguments: str | Path) -> str:
    done = subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects_in(text: str) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[dict[str, Any]]]:
    """The objects of the base and of every overlay."""
    folders = {"base": K8S / "base"} | {name: K8S / "overlays" / name for name in OVERLAYS}
    return {name: objects_in(run_tool("kubectl", "kustomize", folder)) for name, folder in folders.items()}
