"""Paths that several protocols have: fields of the body, or the Accept header, decide which protocol answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from rayinfer.errors import InvalidParameter, TaskNotServed
from rayinfer.servers.caller import usable_models
from rayinfer.servers.documented_routes import Endpoint, add_route
from rayinfer.servers.error_formats import choose_error_format, tgi_error
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.endpoints import OpenAIEndpoints
from rayinfer.servers.openai.schemas import (
    ChatCompletionBody,
    CompletionBody,
    TokenizeChatBody,
    TokenizePromptBody,
)
from rayinfer.servers.openai.tokenize import TokenizeEndpoints
from rayinfer.servers.openapi import TGI_ERRORS
from rayinfer.servers.path_models import PATH_MODEL, find_path_model
from rayinfer.servers.pooling.schemas import RerankBody
from rayinfer.servers.pooling.scores import ScoreEndpoints
from rayinfer.servers.prediction.image_classification import ImageEndpoint, has_raw_image
from rayinfer.servers.prediction.service import PredictionService
from rayinfer.servers.served_model import ALL_TASKS, LIST_TASKS, ServedModel, Task
from rayinfer.servers.tei.endpoints import TeiEndpoints
from rayinfer.servers.tei.entities import EntityEndpoint
from rayinfer.servers.tei.information import TeiInformation
from rayinfer.servers.tei.schemas import EmbedBody, PredictBody, SimilarityBody, TeiRerankBody, TeiTokenizeBody
from rayinfer.servers.tgi.endpoints import TgiEndpoints
from rayinfer.servers.tgi.schemas import GenerateBody, InputsBody
from rayinfer.servers.web.pages import web_page

UNHEALTHY = {"error": "unhealthy", "error_type": "healthcheck"}  # TGI's words


@dataclass(frozen=True, slots=True)
class BodyEndpoint:
    """An endpoint for the bodies that have one of these fields; it chooses the form of its errors."""

    fields: tuple[str, ...]
    endpoint: Endpoint
    bodies: tuple[type[BaseModel], ...]


@dataclass(frozen=True, slots=True)
class SharedEndpoints:
    """Endpoints of the protocols that share paths."""

    openai: OpenAIEndpoints
    tokenizers: TokenizeEndpoints  # vLLM's
    tgi: TgiEndpoints


def add_info_routes(app: FastAPI, service: GenerationService, tgi: TgiEndpoints) -> None:
    """Add `GET /info`: TGI's of language models, TEI's of all others."""
    tei = TeiInformation(service)

    async def info(request: Request) -> Response:
        """GET /info: a model and its limits, in TGI's or TEI's form."""
        choose_error_format(request.scope, tgi_error)
        model = find_path_model(request, service.models, *ALL_TASKS)
        return await (tgi.info(request, model) if _generates(model) else tei.info(request, model))

    add_route(
        app,
        "GET",
        "/info",
        info,
        errors=TGI_ERRORS,
        error_schema="TgiError",
        aliases=("/info/", PATH_MODEL + "/info"),
    )


def add_shared_routes(app: FastAPI, predictions: PredictionService, endpoints: SharedEndpoints) -> None:
    """Add the other paths, behind all that begin with /models."""
    service, openai, tgi = predictions.generation, endpoints.openai, endpoints.tgi
    scores, tei = ScoreEndpoints(predictions), TeiEndpoints(predictions)
    root = _root_endpoint(service, tgi, tei, ImageEndpoint(predictions))
    invocations = [
        BodyEndpoint(("inputs",), root, (GenerateBody, EmbedBody, PredictBody, SimilarityBody)),
        BodyEndpoint(("messages",), openai.create_chat_completion, (ChatCompletionBody,)),
        BodyEndpoint(("prompt",), openai.create_completion, (CompletionBody,)),
    ]
    tokenize = [
        BodyEndpoint(("inputs",), _tokenize_endpoint(service, tgi), (InputsBody, TeiTokenizeBody)),
        BodyEndpoint(("messages", "prompt"), endpoints.tokenizers.tokenize, (TokenizePromptBody, TokenizeChatBody)),
    ]
    reranks = [
        BodyEndpoint(("texts",), tei.rerank, (TeiRerankBody,)),
        BodyEndpoint(("documents",), scores.rerank, (RerankBody,)),
    ]
    _add_post(app, service, "/rerank", reranks)
    _add_post(app, service, "/tokenize", tokenize, aliases=("/v1/tokenize", "/v1/tokenize/"))
    _add_post(app, service, "/invocations", invocations)
    _add_root(app, service, root)


def _generates(model: ServedModel) -> bool:
    """Return whether a model generates text, which one that is not described yet is taken to do."""
    return model.tasks is None or "generate" in model.tasks


def _tokenize_endpoint(service: GenerationService, tgi: TgiEndpoints) -> Endpoint:
    """Return the endpoint of /tokenize with `inputs`: TGI's for language models, TEI's for all others."""
    tei = TeiInformation(service)

    def find(request: Request, raw: dict[str, Any]) -> ServedModel:
        # TGI takes no lists: where several models are served, a list is for one that predicts.
        tasks = LIST_TASKS if isinstance(raw.get("inputs"), list) else ALL_TASKS
        return find_path_model(request, service.models, *tasks)

    async def tokenize(request: Request) -> Response:
        """POST /tokenize with `inputs`."""
        choose_error_format(request.scope, tgi_error)
        model = await service.prepare(request, partial(find, request))
        return await (tgi.tokenize(request) if _generates(model) else tei.tokenize(request))

    return tokenize


def _root_endpoint(service: GenerationService, tgi: TgiEndpoints, tei: TeiEndpoints, images: ImageEndpoint) -> Endpoint:
    """Return the endpoint of the root, where clients of the Hub post `inputs` to a model of any task."""
    endpoints: Mapping[Task, Endpoint] = {
        "generate": tgi.generate_at_root,
        "embed": tei.embed,
        "score": tei.rerank,
        "classify": tei.classify_at_root,
        "token_classify": EntityEndpoint(tei).find,
        "token_embed": tei.embed_all,
        "classify_images": images.classify_at_root,
    }

    async def answer(request: Request) -> Response:
        """POST /, by the task of the model; an image itself is for one that classifies images."""
        choose_error_format(request.scope, tgi_error)
        if await has_raw_image(request):
            return await images.classify_at_root(request)

        def choose(raw: dict[str, Any]) -> Endpoint:
            if isinstance(raw.get("inputs"), dict):
                return tei.similarity
            model = find_path_model(request, service.models, *ALL_TASKS)
            done = ("generate",) if model.tasks is None else model.tasks
            task = next((task for task in ALL_TASKS if task in done and task in endpoints), None)
            if task is None:
                raise TaskNotServed(f"The model {model.name!r} has no answer here; use /v2/models/NAME/infer.", "model")
            return endpoints[task]

        return await (await service.prepare(request, choose))(request)

    return answer


def _add_root(app: FastAPI, service: GenerationService, answer: Endpoint) -> None:
    async def root(request: Request) -> Response:
        """GET /: a page for browsers, and TGI's health for all others."""
        usable = usable_models(request, service.models)
        if _prefers_html(request.headers.get("accept", "")):
            return web_page(request.scope.get("root_path", ""))
        if usable and all(model.generator.status().ready for model in usable.values()):
            return Response(headers={"Vary": "Accept"})
        return json_response(json.dumps(UNHEALTHY).encode(), 503, {"Retry-After": "1", "Vary": "Accept"})

    add_route(app, "GET", "/", root, errors=TGI_ERRORS, error_schema="TgiError", is_json=False)
    app.router.add_route("/", root, methods=["HEAD"], include_in_schema=False)
    add_route(
        app,
        "POST",
        "/",
        answer,
        errors=TGI_ERRORS,
        error_schema="TgiError",
        aliases=[PATH_MODEL],
        bodies=[GenerateBody, EmbedBody, PredictBody, SimilarityBody],
        streams=True,
    )


def _add_post(
    app: FastAPI,
    service: GenerationService,
    path: str,
    choices: Sequence[BodyEndpoint],
    *,
    aliases: Sequence[str] = (),
) -> None:
    def choose(raw: dict[str, Any]) -> BodyEndpoint:
        for choice in choices:
            if any(raw.get(field) is not None for field in choice.fields):
                return choice
        names = [field for choice in choices for field in choice.fields]
        raise InvalidParameter(f"The body must have one of the fields {', '.join(names)}.", names[-1])

    async def dispatch(request: Request) -> Response:
        """Pass the request to the protocol that its fields belong to."""
        choice = await service.prepare(request, choose)
        return await choice.endpoint(request)

    bodies = [body for choice in choices for body in choice.bodies]
    add_route(
        app,
        "POST",
        path,
        dispatch,
        errors=TGI_ERRORS,
        error_schema="SharedError",
        aliases=(path + "/", PATH_MODEL + path, *aliases),
        bodies=bodies,
        streams=path == "/invocations",
    )


def _prefers_html(accept: str) -> bool:
    """Return whether a client names HTML among the types that it accepts, as browsers do."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accept.split(","))
