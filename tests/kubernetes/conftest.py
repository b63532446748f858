"""Manifests as kustomize renders them."""

from typing import Any

import pytest

from support.kubernetes.kubernetes_tools import K8S, OVERLAYS, objects_in, run_tool


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[dict[str, Any]]]:
    """The objects of the base and of every overlay."""
    folders = {"base": K8S / "base"} | {name: K8S / "overlays" / name for name in OVERLAYS}
    return {name: objects_in(run_tool("kubectl", "kustomize", folder)) for name, folder in folders.items()}
