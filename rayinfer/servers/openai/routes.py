"""Routes of OpenAI's endpoints, with the aliases that clients use, and the schemas of their bodies."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from rayinfer.servers.documented_routes import add_body_schemas, body_reference
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.endpoints import OpenAIEndpoints
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody

PREFIX = "/v1"
CHAT_COMPLETIONS = "/chat/completions"
COMPLETIONS = "/completions"


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
    add_body_schemas(app, (ChatCompletionBody, CompletionBody))


def _add_post(app: FastAPI, path: str, endpoint: Any, body: type[BaseModel]) -> None:
    for alias in _aliases(path):
        app.add_api_route(
            alias,
            endpoint,
            methods=["POST"],
            response_class=Response,
            include_in_schema=alias == PREFIX + path,
            openapi_extra=body_reference(body),
        )


def _aliases(path: str) -> list[str]:
    return [PREFIX + path, PREFIX + path + "/", path, path + "/"]
