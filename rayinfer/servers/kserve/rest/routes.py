"""Routes of KServe's protocols over HTTP."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.rest.infer_endpoints import InferEndpoints
from rayinfer.servers.kserve.rest.model_endpoints import ModelEndpoints
from rayinfer.servers.openapi import KSERVE_ERRORS, responses
from rayinfer.servers.prediction.body_limits import BodyLimits

PREFIX = "/v2"
_MODEL = PREFIX + "/models/{name:path}"  # names may contain slashes
_READ_ONLY = ("/trace/setting", "/models/{name:path}/trace/setting", "/logging")
_VERSION = _MODEL + "/versions/{version}"
_ANY_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
_EMPTY_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object", "maxProperties": 0}}}}}


def add_kserve_routes(app: FastAPI, service: InferenceService, body_limits: BodyLimits) -> None:
    """Add the paths of v2 and v1 to an application; those that are asked most come first."""
    running, models = InferEndpoints(service, body_limits), ModelEndpoints(service, body_limits)
    for action in ("infer", "generate", "generate_stream"):
        _add(app, _versions(f"/{action}"), getattr(running, action), "POST")
    _add(app, ["/v1/models/{name:path}:predict"], running.predict, "POST")
    _add(app, ["/v1/models/{name:path}:explain"], running.explain, "POST")
    _add(app, ["/health/live"], models.live, "GET", prefix=PREFIX)
    _add(app, ["/health/ready"], models.ready, "GET", prefix=PREFIX)
    _add(app, ["", "/"], models.server, "GET", prefix=PREFIX)
    _add_repository_routes(app, models)
    _add_settings_routes(app, models)
    _add(app, [PREFIX + "/models/stats", *_versions("/stats")], models.statistics, "GET")
    _add(app, _versions("/config"), models.config, "GET")
    _add(app, _versions("/ready"), models.model_ready, "GET")
    _add(app, _versions(""), models.metadata, "GET")


def _add_repository_routes(app: FastAPI, models: ModelEndpoints) -> None:
    _add(app, ["/repository/index"], models.index, "POST", prefix=PREFIX)
    _add(app, ["/repository/models/{name:path}/load"], models.load, "POST", prefix=PREFIX)
    _add(app, ["/repository/models/{name:path}/unload"], models.unload, "POST", prefix=PREFIX)


def _add_settings_routes(app: FastAPI, models: ModelEndpoints) -> None:
    for method in ("GET", "POST"):
        _add(app, ["/trace/setting", "/models/{name:path}/trace/setting"], models.trace_settings, method, prefix=PREFIX)
        _add(app, ["/logging"], models.log_settings, method, prefix=PREFIX)
    for memory in ("systemsharedmemory", "cudasharedmemory"):
        for action in ("status", "register", "unregister"):
            paths = [f"/{memory}/{action}", f"/{memory}/region/{{name:path}}/{action}"]
            method = "GET" if action == "status" else "POST"
            _add(app, paths, models.refuse_shared_memory, method, prefix=PREFIX)


def _versions(action: str) -> list[str]:
    return [_VERSION + action, _MODEL + action]


def _add(app: FastAPI, paths: Sequence[str], endpoint: Callable[..., Any], method: str, *, prefix: str = "") -> None:
    for path in paths:
        add_documented_route(
            app,
            prefix + path,
            endpoint,
            methods=[method],
            include_in_schema=path != "/" and "/region/" not in path,
            responses=responses({}, *KSERVE_ERRORS, error_schema="KServeError"),
            openapi_extra=None if method == "GET" else _EMPTY_BODY if path in _READ_ONLY else _ANY_BODY,
        )
