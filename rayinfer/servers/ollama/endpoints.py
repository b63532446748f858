"""Endpoints of Ollama's paths."""

import json
from collections.abc import Callable
from importlib.metadata import version as installed_version
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response

from rayinfer.servers.caller import request_context, usable_models
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.chat import PreparedChat
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.ollama.answers import NDJSON, OllamaAnswer, loaded_answer
from rayinfer.servers.ollama.models import model_details, model_entry, running_entry
from rayinfer.servers.ollama.requests import chat_of, completion_of, find_tagged_model
from rayinfer.servers.ollama.schemas import OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.served_model import ServedModel

CURL_TYPE = "application/x-www-form-urlencoded"  # what `curl -d` sends unless told otherwise

Body = TypeVar("Body", OllamaChatBody, OllamaGenerateBody)
Prepared = TypeVar("Prepared")
Prepare = Callable[[Body, ServedModel, GenerationService], PreparedChat]


class OllamaEndpoints:
    """Ollama's paths over the models in a mapping that may change while we serve."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        """POST /api/chat: a stream unless `stream` is false."""
        return await self._respond(request, OllamaChatBody, chat_of, is_chat=True)

    async def generate(self, request: Request) -> Response:
        """POST /api/generate: a stream unless `stream` is false."""
        return await self._respond(request, OllamaGenerateBody, completion_of, is_chat=False)

    async def list_models(self, request: Request) -> Response:
        """GET /api/tags: those that the caller may use and that generate."""
        return _json({"models": [model_entry(model) for model in self._generating(request)]})

    async def list_running(self, request: Request) -> Response:
        """GET /api/ps: those of them that are loaded."""
        ready = [model for model in self._generating(request) if model.generator.status().ready]
        return _json({"models": [running_entry(model) for model in ready]})

    async def show(self, request: Request) -> Response:
        """POST /api/show: one model's details."""

        def prepare(raw: dict[str, Any]) -> ServedModel:
            body = check_schema(OllamaShowBody, raw)
            return find_tagged_model(request, self._service, body.model or body.name)

        return _json(model_details(await _prepare(request, self._service, prepare)))

    async def version(self, request: Request) -> Response:
        """GET /api/version: the service's own."""
        return _json({"version": installed_version("rayinfer")})

    async def refuse_change(self, request: Request) -> Response:
        """Refuse to change what is served, which is chosen where the service is started."""
        what = request.url.path.rstrip("/").rpartition("/")[2]
        return _json({"error": f"{what} is not supported: models are chosen where the service is started"}, 501)

    def _generating(self, request: Request) -> list[ServedModel]:
        models = usable_models(request, self._service.models).values()
        return [model for model in models if model.tasks is None or "generate" in model.tasks]

    async def _respond(
        self, request: Request, schema: type[Body], prepare_body: Prepare[Body], *, is_chat: bool
    ) -> Response:
        def prepare(raw: dict[str, Any]) -> tuple[Body, PreparedChat | None]:
            body = check_schema(schema, raw)
            model = find_tagged_model(request, self._service, body.model)
            asks = body.messages if isinstance(body, OllamaChatBody) else body.prompt
            return body, prepare_body(body, model, self._service) if asks else None

        body, chat = await _prepare(request, self._service, prepare)
        name = body.model or ""
        if chat is None:
            return _json(loaded_answer(name, is_chat=is_chat))
        await self._service.check_grammar(chat.generation)
        context = request_context(request)
        outputs = self._service.start(context, chat.generation, f"ollama-{context.identity.name}")
        answer = OllamaAnswer(chat, name, context.identity.received_s, is_chat=is_chat)
        if body.stream is False:
            return WholeResponse(outputs, answer, answer.body)
        return StreamedResponse(outputs, answer, media_type=NDJSON, keep_alive=answer.keep_alive)


async def _prepare(
    request: Request, service: GenerationService, prepare: Callable[[dict[str, Any]], Prepared]
) -> Prepared:
    """Prepare a request; a body that curl takes for a form is JSON too, where no web page may have sent it."""
    is_form = request.headers.get("content-type") == CURL_TYPE
    if is_form and "origin" not in request.headers:
        return await service.prepare_json(await request.body(), prepare)
    return await service.prepare(request, prepare)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return json_response(json.dumps(body).encode(errors="replace"), status)
