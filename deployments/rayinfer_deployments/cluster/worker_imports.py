"""Imports of a Ray's first workers, made while Ray itself still starts.

Ray starts a worker per core ahead of any work, and each worker imports what `RAY_preload_python_modules` names as soon
as it is connected. The first of them become Serve's controller and the first engine's replica, which need Serve.
Workers that are started later already have something to do, engines among them, which do without Serve: those import
nothing here.
"""

import importlib
import os
from collections.abc import Mapping

from rayinfer_deployments.cluster.imports_without_gc import no_collection
from rayinfer_deployments.cluster.ray_environment import settings_of_ray

NO_JOB = "f"  # all digits of the id of the job that a worker started ahead belongs to
MOST_CORES = 16  # beyond them the memory of so many workers is worth more than the time
SERVE_MODULES = ("ray.serve._private.controller", "rayinfer_deployments.engine.engine_replica")


def modules_to_import(environment: Mapping[str, str], num_cores: int) -> tuple[str, ...]:
    """Return the modules that a worker with this environment should import now."""
    is_ahead = set(environment.get("RAY_JOB_ID", "")) == {NO_JOB}
    return SERVE_MODULES if is_ahead and num_cores <= MOST_CORES else ()


def _import_modules(names: tuple[str, ...]) -> None:
    with no_collection():
        for name in names:
            importlib.import_module(name)


_import_modules(modules_to_import(settings_of_ray(), os.cpu_count() or 1))
