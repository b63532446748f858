"""Calls to a running service's replicas: their arguments, timeouts, and results in JSON."""

import asyncio
from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from rayinfer.errors import RayinferError
from rayinfer.protocols import ControlAction, Pause, Resume, ServiceStatus, Sleep, Wake
from rayinfer_deployments.discovery.engine_address import ENGINE_PREFIX
from rayinfer_deployments.router.router import RouterReport


def engines_in(reports: Sequence[RouterReport]) -> dict[str, str]:
    """List the engines that routers know by name, with the model of each."""
    return {engine: name for report in reports for name, model in report.models.items() for engine in model.engines}


def find_engine(name: str, engines: dict[str, str]) -> str:
    """Find an engine by its name, or by a part of it that no other has."""
    found = [engine for engine in engines if name == engine] or [engine for engine in engines if name in engine]
    if len(found) != 1:
        known = ", ".join(engine.removeprefix(ENGINE_PREFIX) for engine in sorted(engines)) or "none"
        raise RayinferError(f"{'more than one' if found else 'no'} engine matches {name!r} (there are: {known})")
    return found[0]


def have_weights(engines: Set[str], reported: Iterable[tuple[str, int]], version: int) -> bool:
    """Return whether there are engines and each of them has these weights, as its replica reports.

    One that Serve has added meanwhile counts as well, and one without a report does not have them.
    """
    return bool(engines) and engines <= {engine for engine, its in reported if its == version}


async def is_gone(engine: str) -> bool:
    """Return whether an engine's actor has ended."""
    try:
        await asyncio.to_thread(ray.get_actor, engine, "serve")
    except ValueError:
        return True
    return False


async def within(timeout_s: float, response: Any, source: str) -> Any:
    """Await a replica's answer; raises RayinferError with the cause of a failure there."""
    try:
        async with asyncio.timeout(timeout_s):
            return await response
    except TimeoutError:
        raise RayinferError(f"{source} have not answered within {timeout_s:.0f} s") from None
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RayinferError) else RayinferError(str(cause)) from None
    except RayActorError:
        raise RayinferError("the router is gone; Serve builds another") from None


def _default_sampling_params(model: ServiceStatus) -> list[dict[str, Any]]:
    """List the different defaults of a model's engines: one, except while settings or weights change."""
    described = [dict(each.default_sampling_params) for each in model.descriptions.values() if each.predictor is None]
    return [each for index, each in enumerate(described) if each not in described[:index]]


def _tasks(model: ServiceStatus) -> list[str]:
    """List what a model does, once an engine has described it."""
    described = next(iter(model.descriptions.values()), None)
    if described is None:
        return []
    if described.predictor is None:
        return ["generate"]
    return ["classify_images"] if described.predictor.image_size else list(described.predictor.tasks)


def in_plain_types(report: RouterReport) -> dict[str, Any]:
    """Convert a router's report to JSON types."""
    return {
        "name": report.router,
        "key_error": report.key_error,
        "canaries": [asdict(state) for state in report.canaries],
        "models": [
            {
                "name": name,
                "ready": model.ready,
                "reason": model.reason,
                "num_waiting": model.num_waiting,
                "tasks": _tasks(model),
                "default_sampling_params": _default_sampling_params(model),
                "engines": [
                    {
                        "name": engine,
                        "kv_cache_usage": stats.kv_cache_usage,
                        "capacity": model.descriptions[engine].capacity,
                        **asdict(stats),
                    }
                    for engine, stats in model.engines.items()
                ],
            }
            for name, model in report.models.items()
        ],
    }


def control_action(name: str, level: int) -> ControlAction:
    """Return the action of this name; the level is that of `sleep`."""
    actions: dict[str, ControlAction] = {"pause": Pause(), "resume": Resume(), "sleep": Sleep(level), "wake": Wake()}
    if name not in actions:
        raise RayinferError(f"unknown action {name!r}: expected one of {', '.join(actions)}")
    return actions[name]
