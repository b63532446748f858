"""Endpoints of TGI's paths."""

import json
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import find_usable_model, request_context, usable_models
from rayinfer.servers.error_formats import choose_error_format, tgi_error
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.prompt_tokens import PromptLimit
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.prompts import conversation_text
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.schemas import ChatCompletionBody
from rayinfer.servers.openai.unsupported_fields import refuse_unsupported_fields
from rayinfer.servers.path_models import find_path_model
from rayinfer.servers.served_model import PLACEHOLDERS, ServedModel
from rayinfer.servers.tgi.generation import (
    FORM_FIELD,
    TgiGeneration,
    input_token_ids,
    make_generation,
)
from rayinfer.servers.tgi.schemas import GenerateBody
from rayinfer.servers.tgi.stream_events import EventWriter
from rayinfer.servers.tgi.timings import Timings, stream_headers
from rayinfer.servers.tgi.whole_answer import ResponseAggregate
from rayinfer.tokenization.tokenizer import LocatedToken


class TgiEndpoints:
    """TGI's paths over the models in a mapping that may change while we serve."""

    def __init__(self, service: GenerationService) -> None:
        self._models = service.models
        self._service = service

    async def generate(self, request: Request) -> Response:
        """POST /generate: continue a text, in TGI's form."""
        return await self._respond(request, stream=False)

    async def generate_stream(self, request: Request) -> Response:
        """POST /generate_stream: continue a text as events, in TGI's form."""
        return await self._respond(request, stream=True)

    async def generate_at_root(self, request: Request) -> Response:
        """POST /, whose body says whether to stream; a whole answer is a list of one, with the prompt by default."""
        return await self._respond(request, stream=None)

    async def info(self, request: Request, model: ServedModel) -> Response:
        """GET /info of a language model."""
        choose_error_format(request.scope, tgi_error)
        description = model.generator.describe()
        longest_prompt = description.longest_prompt()
        fields = {
            "model_id": model.name,
            "model_sha": None,
            "model_pipeline_tag": "text-generation" if description.scores_prompts else "text2text-generation",
            "max_concurrent_requests": description.max_num_seqs,
            "max_best_of": self._service.limits.max_n,
            "max_stop_sequences": self._service.limits.max_stop_strings,
            "max_input_tokens": longest_prompt,
            "max_total_tokens": description.max_model_len,
            "validation_workers": 1,
            "max_client_batch_size": 1,
            "router": "rayinfer",
            "version": installed_version("rayinfer"),
            "sha": None,
            "docker_label": None,
        }
        return json_response(json.dumps(fields).encode())

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize with `inputs`."""
        choose_error_format(request.scope, tgi_error)
        return json_response(await self._service.prepare(request, lambda raw: self._tokenize(request, raw)))

    async def chat_tokenize(self, request: Request) -> Response:
        """POST /chat_tokenize: a conversation as the model reads it."""
        choose_error_format(request.scope, tgi_error)
        return json_response(await self._service.prepare(request, lambda raw: self._chat_tokenize(request, raw)))

    def _tokenize(self, request: Request, raw: dict[str, Any]) -> bytes:
        body = check_schema(GenerateBody, raw)
        model = find_path_model(request, self._models, "generate")
        num_tokens = len(input_token_ids(body, model, model.generator.describe()))
        located = model.tokenizer.locate_tokens(body.inputs, add_special_tokens=body.add_special_tokens is not False)
        return _encode([_simple_token(body.inputs, token) for token in located[-num_tokens:]])

    def _chat_tokenize(self, request: Request, raw: dict[str, Any]) -> bytes:
        refuse_unsupported_fields(raw, is_chat=True)
        body = check_schema(ChatCompletionBody, raw)
        is_named = body.model is not None and body.model not in PLACEHOLDERS
        model = (
            find_usable_model(request, self._models, body.model, "generate")
            if is_named
            else find_path_model(request, self._models, "generate")
        )
        text = conversation_text(body, model, self._service.limits, trusts_template=False)
        limit = PromptLimit.of(model.generator.describe(), "messages")
        located = model.tokenizer.locate_tokens(
            text, add_special_tokens=bool(body.add_special_tokens), check_length=limit.check
        )
        limit.check(len(located))
        tokens = [_simple_token(text, token) for token in located]
        return _encode({"tokenize_response": tokens, "templated_text": text})

    def _with_adapter(self, request: Request, model: ServedModel, body: GenerateBody) -> ServedModel:
        """Return the model with the adapter that `adapter_id` names; raises InvalidParameter for one that it lacks."""
        name = None if body.parameters is None else body.parameters.adapter_id
        if name is None:
            return model
        base = model.name if model.adapter is None else model.adapter.base
        found = usable_models(request, self._models).get(name)
        if found is None or found.adapter is None or found.adapter.base != base:
            raise InvalidParameter(f"adapter_id: the model {base!r} has no adapter {name!r:.200}", "adapter_id")
        return found

    async def _respond(self, request: Request, *, stream: bool | None) -> Response:
        choose_error_format(request.scope, tgi_error)
        is_root = stream is None
        context = request_context(request)

        def prepare(raw: dict[str, Any]) -> tuple[TgiGeneration, bool]:
            body = check_schema(GenerateBody, raw)
            model = self._with_adapter(request, find_path_model(request, self._models, "generate"), body)
            streams = bool(body.stream) if stream is None else stream
            limits = self._service.limits
            generation = make_generation(body, model, limits, stream=streams, returns_full_text=is_root)
            self._service.check_supports_grammars(model, generation.params, FORM_FIELD)
            return generation, streams

        generation, streams = await self._service.prepare(request, prepare)
        await self._service.check_grammar(generation.prepared())
        timings = Timings(context.identity.received_s)
        response_id = f"tgi-{context.identity.name}"
        outputs = self._service.start(context, generation.prepared(), response_id)
        if streams:
            headers = stream_headers(generation.num_input_chars)
            return StreamedResponse(outputs, EventWriter(generation), headers=headers)
        answer = ResponseAggregate(generation, is_list=is_root)
        return WholeResponse(
            outputs,
            answer,
            answer.body,
            lambda: timings.headers(
                num_input_chars=generation.num_input_chars,
                num_prompt_tokens=len(generation.prompt),
                num_new_tokens=answer.num_tokens,
                dispatched_s=self._service.dispatched_s(context, response_id),
            ),
        )


def _simple_token(text: str, token: LocatedToken) -> dict[str, Any]:
    return {"id": token.token_id, "text": text[token.start : token.stop], "start": token.start, "stop": token.stop}


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")
