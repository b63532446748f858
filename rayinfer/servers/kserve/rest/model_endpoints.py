"""Endpoints about the server, its models and its settings."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from rayinfer.errors import InvalidParameter, NotSupported, TaskNotServed
from rayinfer.servers.caller import caller_of, recognized_caller
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.json_body import decode_object
from rayinfer.servers.kserve.infer_request import SHARED_MEMORY_MESSAGE
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.model_descriptions import (
    LOG_SETTINGS,
    TRACE_SETTINGS,
    model_config,
    model_metadata,
    server_metadata,
)
from rayinfer.servers.kserve.repository import VERSION
from rayinfer.servers.kserve.rest.infer_body import read_json_body
from rayinfer.servers.prediction.body_limits import BodyLimits


class ModelEndpoints:
    """The paths that describe the server and its models."""

    def __init__(self, service: InferenceService, body_limits: BodyLimits) -> None:
        self._repository = service.repository
        self._statistics = service.statistics
        self._body_limits = body_limits

    async def live(self) -> Response:
        """GET /v2/health/live: whether the process answers."""
        return _answer({"live": True})

    async def ready(self, request: Request) -> Response:
        """GET /v2/health/ready: whether all models are ready."""
        self._repository.check_all_ready(recognized_caller(request))
        return _answer({"ready": True})

    async def server(self) -> Response:
        """GET /v2: name, version and extensions of the server."""
        return _answer(server_metadata())

    async def metadata(self, request: Request, name: str, version: str = "") -> Response:
        """GET /v2/models/{name}: inputs and outputs of a model."""
        return _answer(model_metadata(self._repository.find(caller_of(request), name, version)))

    async def config(self, request: Request, name: str, version: str = "") -> Response:
        """GET /v2/models/{name}/config: a model's configuration, in Triton's form."""
        return _answer(model_config(self._repository.find(caller_of(request), name, version)))

    async def model_ready(self, request: Request, name: str, version: str = "") -> Response:
        """GET /v2/models/{name}/ready: whether a model is ready."""
        self._repository.find_ready(caller_of(request), name, version)
        return _answer({"name": name, "ready": True})

    async def statistics(self, request: Request, name: str = "", version: str = "") -> Response:
        """GET /v2/models/stats: counts and times of the requests to all models, or to one."""
        caller = caller_of(request)
        names = [self._repository.find(caller, name, version).name] if name else self._repository.names(caller)
        return _answer({"model_stats": [self._statistics.of(each).as_dict(each, VERSION) for each in names]})

    async def index(self, request: Request) -> Response:
        """POST /v2/repository/index: models and their states."""
        only_ready = (await self._read(request)).get("ready")
        if not isinstance(only_ready, bool | None):
            raise InvalidParameter("ready must be true or false", "ready")
        entries = list(self._repository.index(caller_of(request), only_ready=bool(only_ready)))
        return json_response(json.dumps(entries, ensure_ascii=False).encode())

    async def load(self, request: Request, name: str) -> Response:
        """POST /v2/repository/models/{name}/load: load a model."""
        parameters = (await self._read(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InvalidParameter("parameters must be an object", "parameters")
        self._repository.load(caller_of(request), name, parameters)
        return _answer({})

    async def unload(self, request: Request, name: str) -> Response:
        """POST /v2/repository/models/{name}/unload: unload a model."""
        await self._read(request)
        self._repository.unload(caller_of(request), name)
        return _answer({})

    async def trace_settings(self, request: Request, name: str = "") -> Response:
        """GET and POST /v2/trace/setting: trace settings in Triton's form, of all models or of one."""
        if name:
            self._repository.find(caller_of(request), name)
        return await self._settings(request, TRACE_SETTINGS, "Trace settings")

    async def log_settings(self, request: Request) -> Response:
        """GET and POST /v2/logging: settings of the log."""
        return await self._settings(request, LOG_SETTINGS, "Logging settings")

    async def refuse_shared_memory(self) -> Response:
        """Any path of shared memory."""
        raise TaskNotServed(SHARED_MEMORY_MESSAGE)

    async def _settings(self, request: Request, settings: Mapping[str, Any], title: str) -> Response:
        if request.method == "POST" and await self._read(request):
            raise NotSupported(f"{title} are read-only.")
        return _answer(settings)

    async def _read(self, request: Request) -> dict[str, Any]:
        raw = await read_json_body(request, self._body_limits.of(request.scope))
        return decode_object(raw) if raw.strip() else {}


def _answer(body: Mapping[str, Any]) -> Response:
    return json_response(json.dumps(body, ensure_ascii=False).encode())
