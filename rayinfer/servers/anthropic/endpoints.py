"""Endpoints of Anthropic's paths."""

import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import NotReady
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.anthropic.answers import PING, MessageAnswer, MessageEvents
from rayinfer.servers.anthropic.requests import conversation_request, message_request
from rayinfer.servers.anthropic.schemas import CountTokensBody, MessagesBody
from rayinfer.servers.caller import find_usable_model, request_context, usable_models
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.chat import PreparedChat, prepare_chat
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.generation.timestamps import timestamp
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.served_model import ServedModel


class AnthropicEndpoints:
    """Anthropic's paths over the models in a mapping that may change while we serve."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def create_message(self, request: Request) -> Response:
        """POST /v1/messages: the next message of a conversation, in Anthropic's form."""

        def prepare(raw: dict[str, Any]) -> tuple[bool, PreparedChat]:
            body = check_schema(MessagesBody, raw)
            model = find_usable_model(request, self._service.models, body.model, "generate")
            return bool(body.stream), prepare_chat(message_request(body, model, self._service), self._service)

        streams, chat = await self._service.prepare(request, prepare)
        await self._service.check_grammar(chat.generation)
        context = request_context(request)
        message_id = f"msg_{context.identity.name}"
        outputs = self._service.start(context, chat.generation, message_id)
        answer = MessageAnswer(chat, message_id)
        if streams:
            return StreamedResponse(outputs, MessageEvents(answer), keep_alive=lambda: PING)
        return WholeResponse(outputs, answer, answer.body)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens: tokens of a conversation as the model reads it."""

        def prepare(raw: dict[str, Any]) -> PreparedChat:
            body = check_schema(CountTokensBody, raw)
            model = find_usable_model(request, self._service.models, body.model, "generate")
            return prepare_chat(conversation_request(body, model, SamplingParams()), self._service)

        chat = await self._service.prepare(request, prepare)
        await self._service.check_grammar(chat.generation)  # what a message refuses is no conversation to count
        return json_response(json.dumps({"input_tokens": len(chat.prompt)}).encode())

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models with the header anthropic-version: those that the caller may use, on one page."""
        models = [_model_info(model) for model in usable_models(request, self._service.models).values()]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
        page = {"data": models, "has_more": False, "first_id": None, "last_id": None, **ends}
        return json_response(json.dumps(page).encode())

    async def retrieve_model(self, request: Request, model_id: str) -> Response:
        """GET /v1/models/{model_id} with the header anthropic-version."""
        model = find_usable_model(request, self._service.models, model_id.rstrip("/"))
        return json_response(json.dumps(_model_info(model)).encode())


def _model_info(model: ServedModel) -> dict[str, Any]:
    try:
        max_model_len = model.max_model_len
    except NotReady:
        max_model_len = None
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": timestamp(model.created),
        "lifecycle": "active",
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }
