"""Routes of OpenAI's endpoints, with the aliases that clients use, and the schemas of their bodies."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.endpoints import OpenAIEndpoints
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody

PREFIX = "/v1"
CHAT_COMPLETIONS = "/chat/completions"
COMPLETIONS = "/completions"
_SCHEMA_PATH = "#/components/schemas/{model}"


def generation_paths() -> list[str]:
    """Name the paths that have a model generate, by all their aliases."""
    return [*_aliases(CHAT_COMPLETIONS), *_aliases(COMPLETIONS)]


def add_openai_routes(app: FastAPI, service: GenerationService) -> None:
    """Add the paths of OpenAI's protocol to an application."""
    endpoints = OpenAIEndpoints(service)
    _add_post(app, CHAT_COMPLETIONS, endpoints.create_chat_completion, ChatCompletionBody)
    _add_post(app, COMPLETIONS, endpoints.create_completion, CompletionBody)
    for prefix in (PREFIX, ""):
        in_schema = prefix == PREFIX  # the aliases stay out of the schema
        for path in ("/models", "/models/"):
            app.add_api_route(
                prefix + path,
                endpoints.list_models,
                methods=["GET"],
                response_class=Response,
                include_in_schema=in_schema and path == "/models",
            )
        app.add_api_route(
            prefix + "/models/{model_id:path}",
            endpoints.retrieve_model,
            methods=["GET"],
            response_class=Response,
            include_in_schema=in_schema,
        )
    _add_schemas(app, (ChatCompletionBody, CompletionBody))


def _add_post(app: FastAPI, path: str, endpoint: Any, body: type[BaseModel]) -> None:
    schema = {"$ref": _SCHEMA_PATH.format(model=body.__name__)}
    for alias in _aliases(path):
        app.add_api_route(
            alias,
            endpoint,
            methods=["POST"],
            response_class=Response,
            include_in_schema=alias == PREFIX + path,
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        )


def _aliases(path: str) -> list[str]:
    return [PREFIX + path, PREFIX + path + "/", path, path + "/"]


def _add_schemas(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    # The endpoints read their bodies themselves, so FastAPI does not know these schemas.
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
