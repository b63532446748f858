"""Routes of the Responses API."""

from typing import Any

from fastapi import FastAPI

from rayinfer.servers.documented_routes import Endpoint, add_body_schemas, add_route
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.responses.endpoints import ResponsesEndpoints
from rayinfer.servers.openai.responses.schemas import ResponsesBody
from rayinfer.servers.openai.responses.store import ResponseStore
from rayinfer.servers.openapi import GENERATION_ERRORS

RESPONSES = "/v1/responses"
_ERRORS = (400, 404, 431, 500)


def add_responses_routes(app: FastAPI, service: GenerationService, store: ResponseStore) -> None:
    """Add the paths to an application."""
    endpoints = ResponsesEndpoints(service, store)
    add_route(
        app,
        "POST",
        RESPONSES,
        endpoints.create,
        errors=GENERATION_ERRORS,
        error_schema="ErrorResponse",
        aliases=[RESPONSES + "/", "/responses"],
        bodies=[ResponsesBody],
        streams=True,
    )
    one = RESPONSES + "/{response_id}"
    routes: tuple[tuple[str, str, Endpoint | Any], ...] = (
        ("GET", one, endpoints.retrieve),
        ("DELETE", one, endpoints.delete),
        ("POST", one + "/cancel", endpoints.cancel),
        ("GET", one + "/input_items", endpoints.list_input_items),
    )
    for method, path, endpoint in routes:
        add_route(app, method, path, endpoint, errors=_ERRORS, error_schema="ErrorResponse")
    add_body_schemas(app, [ResponsesBody])
