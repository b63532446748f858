"""Routes of Ollama's paths."""

from fastapi import FastAPI

from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.ollama.endpoints import OllamaEndpoints
from rayinfer.servers.ollama.schemas import OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from rayinfer.servers.openapi import BODY_ERRORS, GENERATION_ERRORS, READ_ERRORS

CHAT, GENERATE = "/api/chat", "/api/generate"
OLLAMA_GENERATION_PATHS = (CHAT, GENERATE)
_SCHEMA = "KServeError"  # of the same form
_CHANGES = (("POST", "pull"), ("POST", "push"), ("POST", "create"), ("POST", "copy"), ("DELETE", "delete"))


def add_ollama_routes(app: FastAPI, service: GenerationService) -> None:
    """Add Ollama's paths to an application."""
    endpoints = OllamaEndpoints(service)
    for path, endpoint, body in (
        (CHAT, endpoints.chat, OllamaChatBody),
        (GENERATE, endpoints.generate, OllamaGenerateBody),
    ):
        add_route(app, "POST", path, endpoint, errors=GENERATION_ERRORS, error_schema=_SCHEMA, bodies=[body])
    for path, endpoint in (
        ("/api/tags", endpoints.list_models),
        ("/api/ps", endpoints.list_running),
        ("/api/version", endpoints.version),
    ):
        add_route(app, "GET", path, endpoint, errors=READ_ERRORS, error_schema=_SCHEMA)
    add_route(
        app, "POST", "/api/show", endpoints.show, errors=BODY_ERRORS, error_schema=_SCHEMA, bodies=[OllamaShowBody]
    )
    for method, name in _CHANGES:
        app.router.add_route(f"/api/{name}", endpoints.refuse_change, methods=[method], include_in_schema=False)
    add_body_schemas(app, [OllamaChatBody, OllamaGenerateBody, OllamaShowBody])
