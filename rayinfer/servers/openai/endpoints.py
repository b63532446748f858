"""Endpoints of OpenAI's paths."""

import json
import uuid
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import NotReady
from rayinfer.servers.caller import find_usable_model, request_context, usable_models
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.chat import prepare_chat
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.beam_settings import beam_search_params
from rayinfer.servers.openai.chunks import CHAT, COMPLETION, ChunkWriter
from rayinfer.servers.openai.priority_header import header_priority
from rayinfer.servers.openai.prompts import chat_request, completion_prompts, echoed_texts
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.response_aggregate import ResponseAggregate
from rayinfer.servers.openai.sampling_settings import (
    chat_params,
    check_num_logprobs,
    check_num_repeated,
    completion_params,
)
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody
from rayinfer.servers.openai.unsupported_fields import refuse_unsupported_fields
from rayinfer.servers.openai.validated_request import ValidatedRequest
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.bad_words import bad_word_tokenizer


class OpenAIEndpoints:
    """OpenAI's paths over the models in a mapping that may change while we serve."""

    def __init__(self, service: GenerationService, *, trusts_request_chat_template: bool = False) -> None:
        self._models = service.models
        self._limits = service.limits
        self._trusts_template = trusts_request_chat_template
        self._service = service

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models: those that the caller may use."""
        cards = [_model_card(model, self._limits) for model in usable_models(request, self._models).values()]
        return json_response(json.dumps({"object": "list", "data": cards}).encode())

    async def retrieve_model(self, request: Request, model_id: str) -> Response:
        """GET /v1/models/{model_id}, whose ids may contain slashes."""
        model = find_usable_model(request, self._models, model_id.rstrip("/"))
        return json_response(json.dumps(_model_card(model, self._limits)).encode())

    async def create_chat_completion(self, request: Request) -> Response:
        """POST /v1/chat/completions: the next message of a conversation."""
        validated = await self._service.prepare(request, partial(self._chat_completion, request))
        return await self._respond(request, validated)

    async def create_completion(self, request: Request) -> Response:
        """POST /v1/completions: continue a text."""
        validated = await self._service.prepare(request, partial(self._completion, request))
        return await self._respond(request, validated)

    def _chat_completion(self, request: Request, raw: dict[str, Any]) -> ValidatedRequest:
        refuse_unsupported_fields(raw, is_chat=True)
        body = check_schema(ChatCompletionBody, raw)
        model = find_usable_model(request, self._models, body.model, "generate")
        description = model.generator.describe()
        body.check_ranges()
        params = chat_params(body, description, self._limits)
        params = params.with_tokenized_bad_words(bad_word_tokenizer(model.tokenizer))
        chat = prepare_chat(chat_request(body, model, params, trusts_template=self._trusts_template), self._service)
        params, prompts = chat.params, [chat.prompt]
        check_num_logprobs(params, prompts, description, self._limits, echoes=False, stream=bool(body.stream))
        check_num_repeated(body, params.n, prompts, None, self._limits)
        beams = beam_search_params(body, params, prompts, self._limits)
        return ValidatedRequest(
            body=body,
            model=model,
            params=params,
            prompts=prompts,
            shape=CHAT,
            chat=chat,
            beams=beams,
            returns_logprobs=bool(body.logprobs),
        )

    def _completion(self, request: Request, raw: dict[str, Any]) -> ValidatedRequest:
        refuse_unsupported_fields(raw, is_chat=False)
        body = check_schema(CompletionBody, raw)
        model = find_usable_model(request, self._models, body.model, "generate")
        description = model.generator.describe()
        body.check_ranges()
        params = completion_params(body, description, self._limits)
        self._service.check_supports_grammars(model, params, body.form_field)
        params = params.with_tokenized_bad_words(bad_word_tokenizer(model.tokenizer))
        prompts = completion_prompts(body, model, description, self._limits, params.max_tokens)
        echoes = bool(body.echo and body.logprobs is not None)
        check_num_logprobs(params, prompts, description, self._limits, echoes=echoes, stream=bool(body.stream))
        echoed = echoed_texts(body, prompts, model.tokenizer, self._limits) if body.echo else None
        check_num_repeated(body, params.n, prompts, echoed, self._limits)
        beams = beam_search_params(body, params, prompts, self._limits)
        return ValidatedRequest(
            body=body,
            model=model,
            params=params,
            prompts=prompts,
            shape=COMPLETION,
            echoed_texts=echoed,
            beams=beams,
            returns_logprobs=body.logprobs is not None,
        )

    async def _respond(self, request: Request, validated: ValidatedRequest) -> Response:
        generation = validated.prepared(header_priority(request))
        await self._service.check_grammar(generation)
        context = request_context(request)
        if validated.body.request_id:
            context.identity.rename(validated.body.request_id)  # over the header's, which proxies set as well
        settings = validated.response_settings(context.identity.name)
        outputs = self._service.start(context, generation, settings.id)
        if validated.body.stream:
            return StreamedResponse(outputs, ChunkWriter(settings, validated.shape))
        answer = ResponseAggregate(settings)
        return WholeResponse(outputs, answer, answer.chat_completion if validated.shape is CHAT else answer.completion)


def _model_card(model: ServedModel, limits: RequestLimits) -> dict[str, Any]:
    try:
        description = model.generator.describe()
    except NotReady:
        description = None
    card = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "rayinfer",
        "root": model.name if model.adapter is None else model.adapter.folder,
        "parent": None if model.adapter is None else model.adapter.base,
        "tasks": model.tasks and list(model.tasks),
        "input_modalities": ["text", "image"] if model.takes_images else ["text"],
        "max_model_len": model.max_model_len,
        "permission": [_permission(model)],
        "default_sampling_params": None if description is None else dict(description.default_sampling_params),
    }
    return card | {"image_limits": _image_limits(limits)} if model.takes_images else card


def _image_limits(limits: RequestLimits) -> dict[str, int]:
    """Return what a request's images may have, so that clients can check them before they are sent."""
    return {
        "max_images": limits.max_images,
        "max_bytes": limits.max_image_bytes,  # of each, encoded
        "max_pixels": limits.max_image_pixels,
        "max_side": limits.max_image_side,
    }


def _permission(model: ServedModel) -> dict[str, Any]:
    """Return what vLLM's cards have: the model may be used, and not trained."""
    return {
        "id": f"modelperm-{uuid.uuid5(uuid.NAMESPACE_URL, model.name).hex}",
        "object": "model_permission",
        "created": model.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
