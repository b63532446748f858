"""Paths of vLLM for operators: pause, resume, put to sleep and wake all engines of a model."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.outputs import EngineState
from rayinfer.protocols import EngineControl, GetState, Pause, Resume, Sleep, Wake
from rayinfer.servers.caller import find_usable_model
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.openapi import READ_ERRORS, query_parameter, responses
from rayinfer.servers.served_model import ServedModel

DEFAULT_SLEEP_LEVEL = "1"

_MODEL = query_parameter("model", "name of the model; may be left out where one is served", {"type": "string"})
_PARAMETERS = {
    "pause": [query_parameter("mode", "what becomes of requests in flight", {"enum": ["keep"]})],
    "sleep": [query_parameter("level", "how much memory is freed", {"enum": ["0", "1", "2"]})],
}


def _one(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: dict(schema)}}


_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "pause": _one("status", {"const": "paused"}),
    "resume": _one("status", {"const": "resumed"}),
    "is_sleeping": _one("is_sleeping", {"type": "boolean"}),
    "is_paused": _one("is_paused", {"type": "boolean"}),
}


def add_engine_control_routes(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    """Add the paths; they can stop the service, so they are off by default.

    With several models, the query names one as `model`.
    """

    async def pause(request: Request) -> Response:
        """POST /pause: requests in flight keep their state, and new ones queue."""
        _refuse_query(request, "mode", "requests in flight are always kept", allowed="keep")
        await _engines(models, request).control(Pause())
        return json_response(b'{"status": "paused"}')

    async def resume(request: Request) -> Response:
        """POST /resume: let paused engines go on."""
        await _engines(models, request).control(Resume())
        return json_response(b'{"status": "resumed"}')

    async def sleep(request: Request) -> Response:
        """POST /sleep?level=: 0 frees no memory, 1 what the host can keep or is unused, 2 all of it."""
        await _engines(models, request).control(Sleep(_level(request)))
        return Response()

    async def wake_up(request: Request) -> Response:
        """POST /wake_up: give sleeping engines their memory again, and resume them."""
        _refuse_query(request, "tags", "weights and cache wake together")
        await _engines(models, request).control(Wake())
        return Response()

    async def is_sleeping(request: Request) -> Response:
        """GET /is_sleeping: whether every engine of the model is."""
        states = await _engines(models, request).control(GetState())
        return json_response(json.dumps({"is_sleeping": set(states) == {EngineState.ASLEEP}}).encode())

    async def is_paused(request: Request) -> Response:
        """GET /is_paused: whether no engine of the model computes anything."""
        states = await _engines(models, request).control(GetState())
        return json_response(json.dumps({"is_paused": EngineState.RUNNING not in states}).encode())

    for endpoint in (pause, resume, sleep, wake_up, is_sleeping, is_paused):
        name = endpoint.__name__
        add_documented_route(
            app,
            f"/{name}",
            endpoint,
            methods=["GET" if name.startswith("is_") else "POST"],
            responses=responses(_SCHEMAS.get(name), 400, 404, 409, 503, *READ_ERRORS),
            openapi_extra={"parameters": [_MODEL, *_PARAMETERS.get(name, ())]},
        )


def _engines(models: Mapping[str, ServedModel], request: Request) -> EngineControl:
    model = find_usable_model(request, models, request.query_params.get("model"))
    if model.engines is None:
        raise InvalidParameter(f"The engines of model {model.name!r} cannot be stopped from here.", "model")
    return model.engines


def _level(request: Request) -> int:
    level = request.query_params.get("level", DEFAULT_SLEEP_LEVEL)
    if level not in ("0", "1", "2"):
        raise InvalidParameter(f"level must be 0, 1 or 2, got {level!r}", "level")
    return int(level)


def _refuse_query(request: Request, name: str, reason: str, allowed: str | None = None) -> None:
    """Refuse an option of vLLM that has no effect here."""
    value = request.query_params.get(name)
    if value not in (None, allowed):
        raise InvalidParameter(f"{name} {value!r} is not supported: {reason}", name)
