"""Routes whose endpoints read bodies themselves, with their bodies and errors in the OpenAPI document."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from rayinfer.servers.generation.server_sent_events import EVENT_STREAM
from rayinfer.servers.openapi import (
    SCHEMA_PATH,
    add_component_schemas,
    json_request_body,
    reference,
    responses,
)

Endpoint = Callable[[Request], Awaitable[Response]]


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
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_class=Response,
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
