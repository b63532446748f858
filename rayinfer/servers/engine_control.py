"""Paths for operators, as vLLM names them: stop and start all engines of a model with their requests in flight."""

import json
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.outputs import EngineState
from rayinfer.protocols import EngineControl
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.served_model import ServedModel, find_model

DEFAULT_SLEEP_LEVEL = "1"


def add_engine_control_routes(app: FastAPI, models: Mapping[str, ServedModel]) -> None:
    """Add the paths; they can stop the service, so an application has them only on demand.

    With several models, the query's `model` names the one that is meant.
    """

    async def pause(request: Request) -> Response:
        """POST /pause: requests in flight stay, new ones wait; neither waits for the answers nor aborts them."""
        _refuse_query(request, "mode", "requests in flight are always kept", allowed="keep")
        await _control(models, request).pause()
        return json_response(b'{"status": "paused"}')

    async def resume(request: Request) -> Response:
        """POST /resume."""
        await _control(models, request).resume()
        return json_response(b'{"status": "resumed"}')

    async def sleep(request: Request) -> Response:
        """POST /sleep?level=: 0 gives no memory back, 1 what the host can keep or is unused, 2 all of it."""
        await _control(models, request).sleep(_level(request))
        return Response()

    async def wake_up(request: Request) -> Response:
        """POST /wake_up."""
        _refuse_query(request, "tags", "weights and cache wake together")
        await _control(models, request).wake()
        return Response()

    async def is_sleeping(request: Request) -> Response:
        """GET /is_sleeping: whether every engine of the model is."""
        states = await _control(models, request).states()
        return json_response(json.dumps({"is_sleeping": set(states) == {EngineState.ASLEEP}}).encode())

    async def is_paused(request: Request) -> Response:
        """GET /is_paused: whether no engine of the model computes anything."""
        states = await _control(models, request).states()
        return json_response(json.dumps({"is_paused": EngineState.RUNNING not in states}).encode())

    for endpoint in (pause, resume, sleep, wake_up):
        app.add_api_route(f"/{endpoint.__name__}", endpoint, methods=["POST"], response_class=Response)
    for endpoint in (is_sleeping, is_paused):
        app.add_api_route(f"/{endpoint.__name__}", endpoint, methods=["GET"], response_class=Response)


def _control(models: Mapping[str, ServedModel], request: Request) -> EngineControl:
    model = find_model(models, request.query_params.get("model"))
    if model.control is None:
        raise InvalidParameter(f"The engines of model {model.name!r} cannot be stopped from here.", "model")
    return model.control


def _level(request: Request) -> int:
    level = request.query_params.get("level", DEFAULT_SLEEP_LEVEL)
    if level not in ("0", "1", "2"):
        raise InvalidParameter(f"level must be 0, 1 or 2, got {level!r}", "level")
    return int(level)


def _refuse_query(request: Request, name: str, reason: str, allowed: str | None = None) -> None:
    """Refuse what a client of vLLM may ask for and would not get."""
    value = request.query_params.get(name)
    if value not in (None, allowed):
        raise InvalidParameter(f"{name} {value!r} is not supported: {reason}", name)
