"""Routes and their bodies in the OpenAPI document: endpoints read bodies themselves, so FastAPI does not know them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

_SCHEMA_PATH = "#/components/schemas/{model}"


Endpoint = Callable[[Request], Awaitable[Response]]


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    aliases: Sequence[str] = (),
    bodies: Sequence[type[BaseModel]] = (),
) -> None:
    """Add a route; its aliases stay out of the document."""
    extra = body_reference(*bodies) if bodies else None
    app.add_api_route(path, endpoint, methods=[method], response_class=Response, openapi_extra=extra)
    for alias in aliases:
        app.router.add_route(alias, endpoint, methods=[method], include_in_schema=False)


def body_reference(*bodies: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's documentation that refers to the schema of its body, which may be one of several."""
    references = [{"$ref": _SCHEMA_PATH.format(model=body.__name__)} for body in bodies]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_body_schemas(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Add the schemas of bodies to an application's document."""
    schemas: dict[str, Any] = {}
    for body in bodies:
        schema = body.model_json_schema(ref_template=_SCHEMA_PATH)
        schemas |= {**schema.pop("$defs", {}), body.__name__: schema}
    build = app.openapi

    def openapi() -> dict[str, Any]:
        document = build()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
