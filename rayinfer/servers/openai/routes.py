"""Routes of OpenAI's endpoints and vLLM's tokenizers, with the aliases that clients use."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.servers.anthropic.endpoints import AnthropicEndpoints
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_formats import speaks_anthropic
from rayinfer.servers.generation.server_sent_events import EVENT_STREAM
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.endpoints import OpenAIEndpoints
from rayinfer.servers.openai.priority_header import PRIORITY_HEADER
from rayinfer.servers.openai.request_schemas import request_schemas
from rayinfer.servers.openai.response_schemas import RESPONSE_SCHEMAS
from rayinfer.servers.openai.schemas import MAX_PRIORITY
from rayinfer.servers.openai.tokenize import TokenizeEndpoints
from rayinfer.servers.openapi import (
    BODY_ERRORS,
    GENERATION_ERRORS,
    READ_ERRORS,
    Responses,
    add_component_schemas,
    header_parameter,
    json_request_body,
    query_parameter,
    reference,
    responses,
)

PREFIX = "/v1"
CHAT_COMPLETIONS = "/chat/completions"
COMPLETIONS = "/completions"
DETOKENIZE = "/detokenize"
TOKENIZER_INFO = "/tokenizer_info"
MODELS = "/models"

_MODEL_PARAMETER = query_parameter(
    "model", "name of the model; may be left out where one is served", {"type": "string"}
)
_PRIORITY_PARAMETER = header_parameter(
    PRIORITY_HEADER,
    "priority, in place of the body's",
    {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
)

_EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}


def generation_paths() -> list[str]:
    """Name the paths that have a model generate, by all their aliases."""
    return [*_aliases(PREFIX, CHAT_COMPLETIONS), *_aliases(PREFIX, COMPLETIONS)]


def add_openai_routes(
    app: FastAPI, endpoints: OpenAIEndpoints, tokenizers: TokenizeEndpoints, anthropic: AnthropicEndpoints
) -> None:
    """Add the paths of OpenAI's protocol to an application; lists of models are Anthropic's where its header comes."""

    async def list_models(request: Request) -> Response:
        """GET /v1/models: models that are served."""
        return await (anthropic if speaks_anthropic(request.scope) else endpoints).list_models(request)

    async def retrieve_model(request: Request, model_id: str) -> Response:
        """GET /v1/models/{model_id}: one model."""
        return await (anthropic if speaks_anthropic(request.scope) else endpoints).retrieve_model(request, model_id)

    _add_post(app, PREFIX, CHAT_COMPLETIONS, endpoints.create_chat_completion, "ChatCompletion", streams=True)
    _add_post(app, PREFIX, COMPLETIONS, endpoints.create_completion, "Completion", streams=True)
    _add_get(app, PREFIX, MODELS, list_models, responses(reference("ModelList"), *READ_ERRORS))
    one_model = responses(reference("Model"), 404, 503, *READ_ERRORS)
    _add_get(app, PREFIX, MODELS + "/{model_id:path}", retrieve_model, one_model)
    _add_post(app, "", DETOKENIZE, tokenizers.detokenize, "Detokenize")
    info = responses(reference("TokenizerInfo"), 400, 404, 503, *READ_ERRORS)
    _add_get(app, "", TOKENIZER_INFO, tokenizers.tokenizer_info, info, {"parameters": [_MODEL_PARAMETER]})


def add_openai_schemas(app: FastAPI, service: GenerationService, *, trusts_request_chat_template: bool = False) -> None:
    """Describe the bodies of the paths, as far as settings and models allow at that moment."""

    def schemas() -> dict[str, Any]:
        trusts = trusts_request_chat_template
        bodies = request_schemas(service.models, service.limits, trusts_request_chat_template=trusts)
        return {**RESPONSE_SCHEMAS, **bodies}

    add_component_schemas(app, schemas)


def _add_post(app: FastAPI, prefix: str, path: str, endpoint: Any, schema: str, *, streams: bool = False) -> None:
    described = responses(reference(f"{schema}Response"), *(GENERATION_ERRORS if streams else BODY_ERRORS))
    parameters: dict[str, Any] = {"parameters": [_PRIORITY_PARAMETER]} if streams else {}
    if streams:
        described[200]["content"][EVENT_STREAM.partition(";")[0]] = {"schema": _EVENT}
    for alias in _aliases(prefix, path):
        add_documented_route(
            app,
            alias,
            endpoint,
            methods=["POST"],
            responses=described,
            include_in_schema=alias == prefix + path,
            openapi_extra={**json_request_body(reference(f"{schema}Body")), **parameters},
        )


def _add_get(
    app: FastAPI,
    prefix: str,
    path: str,
    endpoint: Any,
    described: Responses,
    extra: Mapping[str, Any] | None = None,
) -> None:
    for alias in _aliases(prefix, path):
        add_documented_route(
            app,
            alias,
            endpoint,
            methods=["GET"],
            responses=described,
            include_in_schema=alias == prefix + path,
            openapi_extra=dict(extra or {}),
        )


def _aliases(prefix: str, path: str) -> list[str]:
    return list(
        dict.fromkeys((prefix + path, prefix + path + "/", PREFIX + path, PREFIX + path + "/", path, path + "/"))
    )
