"""Operators' paths that change how many engines there are, and with which weights: scale, drain and reload."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter, OperationRefused, RayinferError, RequestError
from rayinfer.servers.caller import find_usable_model
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.json_body import decode_object, read_body
from rayinfer.servers.openapi import BODY_ERRORS, json_request_body, responses
from rayinfer.servers.served_model import ServedModel

ScalingDecisionsOf = Callable[[str], Awaitable[Sequence[Mapping[str, Any]]]]  # of a model, the latest last

PREFIX = "/operations/"
MAX_NUM_ENGINES = 1024
MAX_TEXT = 4096

_MODEL = {"type": "string", "description": "name of the model; may be left out where one is served"}
_BODIES: Mapping[str, dict[str, Any]] = {
    "scale": {"model": _MODEL, "engines": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_NUM_ENGINES}},
    "drain": {"engine": {"type": "string"}, "shrink": {"type": "boolean"}},
    "reload": {"model": _MODEL, "source": {"type": "string", "description": "folder, hub repository or name"}},
}
_REQUIRED = {"scale": ["engines"], "drain": ["engine"], "reload": ["source"]}


class ServiceOperator(Protocol):
    """Runner of operators' commands on the whole service."""

    async def run(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Run `scale`, `drain` or `reload`; returns what has become of it, raises RayinferError."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Operations:
    """Commands on the whole service, and the decisions that it makes itself."""

    operator: ServiceOperator | None = None  # None: there are no such commands
    scaling_decisions: ScalingDecisionsOf | None = None


NO_OPERATIONS = Operations()


def add_operation_routes(app: FastAPI, models: Mapping[str, ServedModel], operator: ServiceOperator | None) -> None:
    """Add the paths. A command goes on when its client leaves: it has begun to change the service."""
    if operator is None:
        return
    running: set[asyncio.Task[Any]] = set()

    async def run(operation: str, arguments: Mapping[str, Any]) -> Response:
        task = asyncio.create_task(operator.run(operation, arguments))
        running.add(task)
        task.add_done_callback(running.discard)
        try:
            outcome = await asyncio.shield(task)
        except RequestError:
            raise
        except RayinferError as error:
            raise OperationRefused(str(error)) from None
        return json_response(json.dumps({"result": outcome}).encode())

    async def scale(request: Request) -> Response:
        """POST /operations/scale: set a model's number of engines; null restores the settings from the start."""
        body = await _body(request, "model", "engines")
        engines = body.get("engines")
        is_number = isinstance(engines, int) and not isinstance(engines, bool)
        if "engines" not in body or not (engines is None or (is_number and 1 <= engines <= MAX_NUM_ENGINES)):
            raise InvalidParameter(f"engines must be 1 to {MAX_NUM_ENGINES}, or null, got {engines!r:.80}", "engines")
        return await run("scale", {"num_engines": engines, "model": _model(request, models, body)})

    async def drain(request: Request) -> Response:
        """POST /operations/drain: migrate an engine's streams and replace it, or with `shrink` do without it."""
        body = await _body(request, "engine", "shrink")
        if not isinstance(shrink := body.get("shrink", False), bool):
            raise InvalidParameter(f"shrink must be true or false, got {shrink!r:.80}", "shrink")
        return await run("drain", {"engine": _text(body, "engine"), "shrink": shrink})

    async def reload(request: Request) -> Response:
        """POST /operations/reload: replace a model's weights, engine by engine, with streams open."""
        body = await _body(request, "model", "source")
        return await run("reload", {"source": _text(body, "source"), "model": _model(request, models, body)})

    for endpoint in (scale, drain, reload):
        name = endpoint.__name__
        schema = {"type": "object", "required": _REQUIRED[name], "properties": _BODIES[name]}
        add_documented_route(
            app,
            PREFIX + name,
            endpoint,
            methods=["POST"],
            responses=responses({"type": "object", "required": ["result"]}, 401, 403, 409, *BODY_ERRORS),
            openapi_extra=json_request_body(schema),
        )


async def _body(request: Request, *known: str) -> dict[str, Any]:
    body = decode_object(await read_body(request))
    if unknown := sorted(set(body) - set(known)):
        raise InvalidParameter(f"unknown field {unknown[0]!r:.80}: expected {', '.join(known)}", unknown[0][:80])
    return body


def _model(request: Request, models: Mapping[str, ServedModel], body: Mapping[str, Any]) -> str:
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidParameter(f"model must be a text, got {name!r:.80}", "model")
    return find_usable_model(request, models, name).name


def _text(body: Mapping[str, Any], name: str) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
        raise InvalidParameter(f"{name} must be a text of 1 to {MAX_TEXT} characters, got {text!r:.80}", name)
    return text
