"""The HTTP application: OpenAI's paths, the service's own, and one envelope for every error."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from starlette.types import Scope

from rayinfer.access.access_control import AccessControl
from rayinfer.access.rate_limits import RATE_LIMIT_HEADERS
from rayinfer.error_kinds import error_kind
from rayinfer.errors import RayinferError
from rayinfer.images.fetching.media_fetcher import MediaFetcher
from rayinfer.metrics.families import MetricsSnapshot
from rayinfer.metrics.load_text import load_text
from rayinfer.metrics.service_metrics import CONTENT_TYPE, ServiceMetrics
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.access.middleware import AccessMiddleware
from rayinfer.servers.access.open_paths import LOAD_PATH
from rayinfer.servers.access.usage import add_usage_routes
from rayinfer.servers.access.web_origins import ANY_NAME, OriginCheck, OriginPolicy
from rayinfer.servers.adapters.registry import AdapterRegistry
from rayinfer.servers.adapters.routes import add_adapter_routes
from rayinfer.servers.anthropic.endpoints import AnthropicEndpoints
from rayinfer.servers.anthropic.routes import MESSAGES, add_anthropic_routes
from rayinfer.servers.caller import recognized_caller, trust_tenant_header
from rayinfer.servers.documented_routes import add_documented_route, serve_document
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response, json_response, refusal_reason, status_response
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.kserve.rest.routes import add_kserve_routes
from rayinfer.servers.load_shedding import LoadShedding
from rayinfer.servers.megatron.endpoint import API, add_megatron_routes
from rayinfer.servers.ollama.routes import OLLAMA_GENERATION_PATHS, add_ollama_routes
from rayinfer.servers.openai.batches.routes import BatchServices, add_batch_routes
from rayinfer.servers.openai.endpoints import OpenAIEndpoints
from rayinfer.servers.openai.responses.routes import RESPONSES, add_responses_routes
from rayinfer.servers.openai.responses.store import ResponseStore
from rayinfer.servers.openai.routes import add_openai_routes, add_openai_schemas, generation_paths
from rayinfer.servers.openai.tokenize import TokenizeEndpoints
from rayinfer.servers.openapi import (
    ERROR_SCHEMAS,
    READ_ERRORS,
    Responses,
    add_component_schemas,
    json_content,
    remove_validation_errors,
    responses,
)
from rayinfer.servers.operators.engine_control import add_engine_control_routes
from rayinfer.servers.operators.operations import NO_OPERATIONS, Operations, add_operation_routes
from rayinfer.servers.pooling.routes import POOLING_PATHS, add_pooling_routes
from rayinfer.servers.prediction.body_limits import BodyLimits
from rayinfer.servers.prediction.image_classification import IMAGE_PATH, add_image_routes
from rayinfer.servers.prediction.service import PredictionService
from rayinfer.servers.request_boundary import RequestBoundary
from rayinfer.servers.request_bounds import DEFAULT_MAX_BODY_BYTES, RequestBounds
from rayinfer.servers.request_limits import DEFAULT_REQUEST_LIMITS, RequestLimits
from rayinfer.servers.served_model import ServedModel as ServedModel
from rayinfer.servers.served_model import base_models
from rayinfer.servers.server_info import add_server_info_routes
from rayinfer.servers.shared_paths import SharedEndpoints, add_info_routes, add_shared_routes
from rayinfer.servers.tei.routes import TEI_PATHS, add_tei_routes
from rayinfer.servers.tgi.endpoints import TgiEndpoints
from rayinfer.servers.tgi.routes import TGI_GENERATION_PATHS, add_tgi_routes
from rayinfer.servers.traces.endpoints import add_trace_routes
from rayinfer.servers.web.live import LiveSamples, add_live_route
from rayinfer.servers.web.pages import add_web_routes
from rayinfer.traces.trace_store import TraceStore

# FastAPI's pages load programs from other sites, and its document is made on the event loop.
NO_PAGES: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
CORS_OPTIONS: dict[str, Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["*"],
    "expose_headers": ["x-request-id", "retry-after", *RATE_LIMIT_HEADERS],
}

logger = logging.getLogger(__name__)

_SHED_PATHS = (
    *(*generation_paths(), *TGI_GENERATION_PATHS, API, MESSAGES, RESPONSES, *OLLAMA_GENERATION_PATHS),
    *(*POOLING_PATHS, *TEI_PATHS, IMAGE_PATH),
)

OtherMetrics = Callable[[], Awaitable[Sequence[MetricsSnapshot]]]


def build_app(
    models: Mapping[str, ServedModel],
    metrics: ServiceMetrics,
    *,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    request_timeout_s: float | None = None,
    traces: TraceStore | None = None,
    echoes_request_id: bool = True,
    enable_engine_control: bool = False,
    trusts_tenant_header: bool = False,
    access: AccessControl | None = None,
    access_log: AccessLog | None = None,
    opens_load: bool = False,
    price_per_engine_hour: float = 0.0,
    origins: OriginPolicy = ANY_NAME,
    other_metrics: OtherMetrics | None = None,
    request_limits: RequestLimits = DEFAULT_REQUEST_LIMITS,
    trusts_request_chat_template: bool = False,
    kserve: InferenceService | None = None,
    batches: BatchServices | None = None,
    response_store: ResponseStore | None = None,
    operations: Operations = NO_OPERATIONS,
    adapters: AdapterRegistry | None = None,
    media: MediaFetcher | None = None,
) -> FastAPI:
    """Build the application over `models`, a mapping that may be filled and change while it serves.

    Requests are traced if there are `traces` to keep them in, shared with the generators. A proxy that puts
    `x-request-id` on every answer itself, as Ray Serve's does, wants `echoes_request_id=False`. `other_metrics`
    returns the metrics of other routers at this address. With `trusts_tenant_header`, all clients must come through a
    gateway that sets it; with `trusts_request_chat_template`, they may send programs. A `kserve` that is shared with
    gRPC has its own generation service. With `access`, all but `open_paths.py` needs a key, and with `opens_load` the
    load does not. Without `response_store` responses are in memory; `operations` need `enable_engine_control`.
    """
    app = _empty_app()
    trust_tenant_header(app, trusts_tenant_header)
    app.add_middleware(LoadShedding, models=models, metrics=metrics, paths=_SHED_PATHS)
    _add_access(app, metrics, access, access_log, origins, opens_load=opens_load)
    if kserve is None:
        service = GenerationService(models, request_timeout_s, traces, request_limits, access, media=media)
        kserve = InferenceService(service, ModelRepository(models))
    body_limits = BodyLimits(max_body_bytes, models, kserve.generation.limits, batches.max_file_bytes if batches else 0)
    app.add_middleware(
        RequestBoundary,
        metrics=metrics,
        bounds=RequestBounds(),
        max_body_bytes=body_limits.of,
        echoes_request_id=echoes_request_id,
    )
    _add_error_handlers(app, metrics)
    _add_protocols(app, kserve, body_limits, trusts_request_chat_template=trusts_request_chat_template)
    _add_service_routes(app, models, metrics, other_metrics)
    samples = LiveSamples(models, metrics, other_metrics, operations.scaling_decisions)
    _add_operations(app, models, samples, operations if enable_engine_control else None)
    add_server_info_routes(app, kserve.generation)
    add_trace_routes(app, traces, models)
    _add_stored(app, kserve.generation, batches, response_store)
    _add_changes_and_usage(app, adapters, access, price_per_engine_hour)
    _complete_document(app)
    return app


def _empty_app() -> FastAPI:
    app = FastAPI(title="rayinfer", version=installed_version("rayinfer"), redirect_slashes=False, **NO_PAGES)
    serve_document(app)
    return app


def _add_access(
    app: FastAPI,
    metrics: ServiceMetrics,
    access: AccessControl | None,
    log: AccessLog | None,
    origins: OriginPolicy,
    *,
    opens_load: bool,
) -> None:
    """Check keys, and behind which web page a request was made."""
    if access is not None or log is not None:
        app.add_middleware(AccessMiddleware, access=access, metrics=metrics, log=log, opens_load=opens_load)
    if origins.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins.cors_origins), **CORS_OPTIONS)
    app.add_middleware(OriginCheck, policy=replace(origins, has_keys=access is not None), metrics=metrics)


def _add_operations(
    app: FastAPI, models: Mapping[str, ServedModel], samples: LiveSamples, operations: Operations | None
) -> None:
    """Add the live view, and the paths of operators where there are operations."""
    add_live_route(app, models, samples, has_operations=operations is not None)
    if operations is not None:
        add_engine_control_routes(app, models)
        add_operation_routes(app, models, operations.operator)


def _add_changes_and_usage(
    app: FastAPI, adapters: AdapterRegistry | None, access: AccessControl | None, price_per_engine_hour: float
) -> None:
    """Add the paths that change adapters, and that of usage where there are keys."""
    add_adapter_routes(app, adapters)
    if access is not None:
        add_usage_routes(app, access, price_per_engine_hour)


def _add_stored(
    app: FastAPI, service: GenerationService, batches: BatchServices | None, store: ResponseStore | None
) -> None:
    """Add the paths of what is kept: files and batches, and responses."""
    add_batch_routes(app, batches)
    add_responses_routes(app, service, store or ResponseStore())


def _add_protocols(
    app: FastAPI, kserve: InferenceService, body_limits: BodyLimits, *, trusts_request_chat_template: bool
) -> None:
    """Add the paths of all protocols, which are looked through in this order: those asked most come first."""
    service = kserve.generation
    openai = OpenAIEndpoints(service, trusts_request_chat_template=trusts_request_chat_template)
    tokenizers = TokenizeEndpoints(service, trusts_request_chat_template=trusts_request_chat_template)
    tgi, predictions = TgiEndpoints(service), PredictionService(service)
    add_info_routes(app, service, tgi)  # before OpenAI's /models/{id}, whose ids may contain slashes
    anthropic = AnthropicEndpoints(service)
    add_openai_routes(app, openai, tokenizers, anthropic)
    add_anthropic_routes(app, anthropic)
    add_openai_schemas(app, service, trusts_request_chat_template=trusts_request_chat_template)
    add_pooling_routes(app, predictions)
    add_tgi_routes(app, tgi)
    add_tei_routes(app, predictions)
    add_image_routes(app, predictions)
    add_megatron_routes(app, service)
    add_ollama_routes(app, service)
    add_kserve_routes(app, kserve, body_limits)
    add_shared_routes(app, predictions, SharedEndpoints(openai, tokenizers, tgi))


def _complete_document(app: FastAPI) -> None:
    add_component_schemas(app, lambda: ERROR_SCHEMAS)
    remove_validation_errors(app)


def _add_error_handlers(app: FastAPI, metrics: ServiceMetrics) -> None:
    async def respond_to_error(request: Request, error: Exception) -> Response:
        if error_kind(error).status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("a request failed", exc_info=error)
        else:
            metrics.request_refused(refusal_reason(error))
        return error_response(error, error_format_of(request.scope))

    async def respond_to_status(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return error_response(error, error_format_of(request.scope))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            error = HTTPException(error.status_code, error.detail, {"Allow": ", ".join(_methods(app, request.scope))})
        phrase = "No such path." if error.status_code == HTTPStatus.NOT_FOUND else f"{error.detail}."
        return status_response(error.status_code, phrase, error.headers, error_format_of(request.scope))

    app.add_exception_handler(RayinferError, respond_to_error)
    app.add_exception_handler(HTTPException, respond_to_status)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """List the methods of the routes with a path's longest pattern; Starlette answers with those of the first route."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE]
    longest = max((route.path for route in routes), key=len, default="")
    return sorted({method for route in routes if route.path == longest for method in route.methods or ()})


def _add_service_routes(
    app: FastAPI, models: Mapping[str, ServedModel], metrics: ServiceMetrics, other_metrics: OtherMetrics | None
) -> None:
    async def health() -> Response:
        """Report that the process is alive."""
        return Response()

    async def ready(request: Request) -> Response:
        """Report whether every model can answer, and if not, why; without a key where one is needed no reasons."""
        reasons, caller = _reasons_not_ready(models), recognized_caller(request)
        if not reasons:
            return json_response(b'{"ready": true}')
        answer: dict[str, Any] = {"ready": False}
        if not caller.is_stranger:
            answer["reasons"] = {name: why for name, why in reasons.items() if caller.may_see(name)}
        return json_response(json.dumps(answer).encode(), 503, {"Retry-After": "1"})

    async def render_metrics() -> Response:
        """Return the metrics of all routers as Prometheus text."""
        others = [] if other_metrics is None else await other_metrics()
        return Response(await asyncio.to_thread(metrics.render, others), headers={"Content-Type": CONTENT_TYPE})

    async def load() -> Response:
        """Return this router's queue and the load of the engines, without names: for endpoint pickers."""
        return Response(load_text(metrics.snapshot()), headers={"Content-Type": CONTENT_TYPE})

    async def version() -> Response:
        """Return the version."""
        return json_response(json.dumps({"version": installed_version("rayinfer")}).encode())

    routes: dict[str, Callable[..., Awaitable[Response]]]
    routes = {"/health": health, "/ping": health, "/ready": ready, "/metrics": render_metrics, "/version": version}
    routes[LOAD_PATH] = load
    for path, endpoint in routes.items():
        for alias in (path, path + "/"):
            add_documented_route(
                app,
                alias,
                endpoint,
                methods=["GET"],
                responses=_SERVICE_RESPONSES[path],
                include_in_schema=alias == path,
            )
            add_documented_route(app, alias, endpoint, methods=["HEAD"], include_in_schema=False)
    add_web_routes(app)


_READY = {
    "type": "object",
    "required": ["ready"],
    "properties": {
        "ready": {"type": "boolean"},
        "reasons": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_VERSION = {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}}
_ALIVE = responses(None, *READ_ERRORS)
_NOT_READY: Responses = {503: {"description": "Not ready, and why", "content": json_content(_READY)}}
_METRICS: Responses = {
    200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_SERVICE_RESPONSES: Mapping[str, Responses] = {
    "/health": _ALIVE,
    "/ping": _ALIVE,
    "/ready": {**responses(_READY, *READ_ERRORS), **_NOT_READY},
    "/metrics": {**_ALIVE, **_METRICS},
    LOAD_PATH: {**_ALIVE, **_METRICS},
    "/version": responses(_VERSION, *READ_ERRORS),
}


def _reasons_not_ready(models: Mapping[str, ServedModel]) -> dict[str, str]:
    if not models:
        return {"service": "no model is loaded yet"}
    statuses = {name: model.generator.status() for name, model in base_models(models).items()}
    return {name: status.reason or "not ready" for name, status in statuses.items() if not status.ready}
