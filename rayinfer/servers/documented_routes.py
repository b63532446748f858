"""Routes whose endpoints read their requests themselves, and the OpenAPI document of them all.

FastAPI describes them when the document is asked for. Starlette serves them: FastAPI would inspect the parameters of
each of two hundred routes at every start, two thirds of the time that an application takes to build.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.routing import Route

from rayinfer.servers.generation.server_sent_events import EVENT_STREAM
from rayinfer.servers.openapi import (
    SCHEMA_PATH,
    add_component_schemas,
    json_request_body,
    reference,
    responses,
)

OPENAPI_PATH = "/openapi.json"

Endpoint = Callable[[Request], Awaitable[Response]]


def serve_document(app: FastAPI) -> None:
    """Serve the OpenAPI document, which is made when it is first asked for, beside the event loop."""
    making = asyncio.Lock()

    @functools.cache
    def describe() -> dict[str, Any]:
        described = APIRouter()
        for options in app.state.documented_routes:
            described.add_api_route(**options)
        return get_openapi(title=app.title, version=app.version, routes=described.routes)

    async def read_document(request: Request) -> Response:
        async with making:
            document = await asyncio.to_thread(app.openapi)
        if root_path := request.scope.get("root_path", "").rstrip("/"):
            document = document | {"servers": [{"url": root_path}]}
        return JSONResponse(document)

    app.state.documented_routes = []
    app.openapi = describe  # type: ignore[method-assign]
    app.router.add_route(OPENAPI_PATH, read_document, include_in_schema=False)


def add_documented_route(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Awaitable[Response]],
    *,
    methods: Sequence[str],
    responses: Mapping[int | str, Any] | None = None,
    openapi_extra: dict[str, Any] | None = None,
    include_in_schema: bool = True,
) -> None:
    """Add a route; besides the request, which it may do without, an endpoint takes texts of path and query by name."""
    if include_in_schema:
        described = {"responses": dict(responses or {}), "openapi_extra": openapi_extra}
        app.state.documented_routes.append(
            {"path": path, "endpoint": endpoint, "methods": methods, "response_class": Response, **described}
        )
    route = Route(path, _with_parameters(endpoint), methods=list(methods), include_in_schema=include_in_schema)
    route.methods = set(methods)  # without the HEAD that comes with GET
    app.router.routes.append(route)


def _with_parameters(endpoint: Callable[..., Awaitable[Response]]) -> Endpoint:
    """Return an endpoint that is called with a request alone."""
    names = list(inspect.signature(endpoint).parameters)
    if names == ["request"]:
        return endpoint
    takes_request = "request" in names
    others = [name for name in names if name != "request"]

    @functools.wraps(endpoint)
    async def call(request: Request) -> Response:
        given = {**request.query_params, **request.path_params}
        parameters = {name: given[name] for name in others if name in given}
        return await (endpoint(request, **parameters) if takes_request else endpoint(**parameters))

    return call


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    errors: Sequence[int],
    error_schema: str,
    aliases: Sequence[str] = (),
    bodies: Sequence[type[BaseModel]] = (),
    is_json: bool = True,
    streams: bool = False,
) -> None:
    """Add a route; its aliases stay out of the document."""
    described = responses({} if is_json else None, *errors, error_schema=error_schema)
    if streams:
        described[200]["content"][EVENT_STREAM.partition(";")[0]] = {"schema": {"type": "object"}}
    add_documented_route(
        app,
        path,
        endpoint,
        methods=[method],
        responses=described,
        openapi_extra=_body_reference(bodies) if bodies else None,
    )
    for alias in aliases:
        app.router.add_route(alias, endpoint, methods=[method], include_in_schema=False)


def add_body_schemas(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Add the schemas of bodies to an application's document."""
    schemas = _schemas_of(tuple(bodies))  # now: later the event loop serves requests
    add_component_schemas(app, lambda: schemas)


@functools.cache  # a process may build several applications
def _schemas_of(bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for body in bodies:
        schema = body.model_json_schema(ref_template=SCHEMA_PATH)
        schemas |= {**schema.pop("$defs", {}), body.__name__: schema}
    return schemas


def _body_reference(bodies: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """Refer to the schema of a body, which may be one of several."""
    references = [reference(body.__name__) for body in bodies]
    return json_request_body(references[0] if len(references) == 1 else {"anyOf": references})
