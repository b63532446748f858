"""What each of OpenAI's paths does."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import NotReady
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.edge import RequestIdentity
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.openai.answer import AnswerSettings
from rayinfer.servers.openai.chunks import CHAT, COMPLETION, ChunkShape, ChunkWriter
from rayinfer.servers.openai.generation_response import StreamedResponse, WholeResponse
from rayinfer.servers.openai.prompt_outputs import generate_outputs
from rayinfer.servers.openai.prompts import chat_prompts, completion_prompts
from rayinfer.servers.openai.request_body import check_schema, read_json_object
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody, GenerationBody
from rayinfer.servers.openai.unsupported_fields import refuse_unsupported_fields
from rayinfer.servers.openai.whole_answer import WholeAnswer
from rayinfer.servers.served_model import ServedModel, find_model

DEFAULT_COMPLETION_TOKENS = 16


class OpenAIEndpoints:
    """OpenAI's paths over the models in a mapping that may change while we serve."""

    def __init__(self, models: Mapping[str, ServedModel], request_timeout_s: float | None) -> None:
        self._models = models
        self._request_timeout_s = request_timeout_s

    async def list_models(self) -> Response:
        """GET /v1/models."""
        cards = [_model_card(model) for model in self._models.values()]
        return json_response(json.dumps({"object": "list", "data": cards}).encode())

    async def retrieve_model(self, model_id: str) -> Response:
        """GET /v1/models/{model_id}, whose ids may contain slashes."""
        if not model_id.strip("/"):
            return await self.list_models()
        return json_response(json.dumps(_model_card(find_model(self._models, model_id.rstrip("/")))).encode())

    async def create_chat_completion(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        raw = await read_json_object(request)
        refuse_unsupported_fields(raw)
        body = check_schema(ChatCompletionBody, raw)
        model = find_model(self._models, body.model)
        description = model.generator.describe()
        body.check_ranges(description.vocab_size)
        params = body.sampling_params(default_max_tokens=None)
        prompts = await chat_prompts(body, model, description)
        return self._respond(request, body, model, params, prompts, CHAT)

    async def create_completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        raw = await read_json_object(request)
        refuse_unsupported_fields(raw)
        body = check_schema(CompletionBody, raw)
        model = find_model(self._models, body.model)
        description = model.generator.describe()
        body.check_ranges(description.vocab_size)
        params = body.sampling_params(DEFAULT_COMPLETION_TOKENS)
        prompts = await completion_prompts(body, model, description)
        return self._respond(request, body, model, params, prompts, COMPLETION)

    def _respond(
        self,
        request: Request,
        body: GenerationBody,
        model: ServedModel,
        params: SamplingParams,
        prompts: list[list[int]],
        shape: ChunkShape,
    ) -> Response:
        settings = _answer_settings(request, body, model, prompts, params.n, "chatcmpl" if shape is CHAT else "cmpl")
        outputs = generate_outputs(model.generator, self._generation_requests(body, params, prompts))
        if body.stream:
            return StreamedResponse(outputs, ChunkWriter(settings, shape))
        answer = WholeAnswer(settings)
        return WholeResponse(outputs, answer, answer.chat_completion if shape is CHAT else answer.completion)

    def _generation_requests(
        self, body: GenerationBody, params: SamplingParams, prompts: Sequence[list[int]]
    ) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                request_id=uuid.uuid4().hex,  # ours: two clients may choose the same name
                prompt_token_ids=prompt,
                sampling_params=params,
                priority=body.priority or 0,
                timeout_s=self._request_timeout_s,
                cache_salt=body.cache_salt or "",
            )
            for prompt in prompts
        ]


def _answer_settings(
    request: Request,
    body: GenerationBody,
    model: ServedModel,
    prompts: list[list[int]],
    num_choices: int,
    id_prefix: str,
) -> AnswerSettings:
    identity: RequestIdentity = request.state.identity
    if body.request_id:
        identity.rename(body.request_id)  # over the header's, which proxies set on their own as well
    options = body.stream_options
    with_usage = bool(options and options.include_usage)
    return AnswerSettings(
        id=f"{id_prefix}-{identity.name}",
        created=int(time.time()),
        model=model.name,
        prompts=prompts,
        num_choices=num_choices,
        with_token_ids=bool(body.return_token_ids),
        with_usage=with_usage,
        with_usage_in_every_chunk=with_usage and bool(options and options.continuous_usage_stats),
    )


def _model_card(model: ServedModel) -> dict[str, Any]:
    try:
        max_model_len = model.generator.describe().max_model_len
    except NotReady:
        max_model_len = None
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "rayinfer",
        "root": model.name,
        "parent": None,
        "max_model_len": max_model_len,
    }
