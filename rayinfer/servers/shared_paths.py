"""Paths that several protocols have: fields of the body, or the Accept header, decide which protocol answers."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import recognized_caller, usable_models
from rayinfer.servers.documented_routes import Endpoint, add_route
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
from rayinfer.servers.path_models import PATH_MODEL
from rayinfer.servers.tgi.endpoints import TgiEndpoints
from rayinfer.servers.tgi.schemas import GenerateBody, InputsBody

UNHEALTHY = {"error": "unhealthy", "error_type": "healthcheck"}  # TGI's words
_HTML_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Vary": "Accept"}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><title>rayinfer</title>
<style>body {{ font: 1rem/1.5 sans-serif; margin: 3rem }}</style>
</head>
<body>
<h1>rayinfer</h1>
{content}
<p><a href="{root}/ready">readiness</a>{links}</p>
</body>
</html>
"""

_FOR_STRANGERS = "<p>An inference service, which needs an API key.</p>"
_FOR_CALLERS = "<p>An inference service. Models:</p><ul>{models}</ul>"
_LINKS = ' · <a href="{root}/openapi.json">API</a> · <a href="{root}/metrics">metrics</a>'


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


def add_info_routes(app: FastAPI, tgi: TgiEndpoints) -> None:
    """Add `GET /info`."""
    add_route(
        app,
        "GET",
        "/info",
        tgi.info,
        errors=TGI_ERRORS,
        error_schema="TgiError",
        aliases=("/info/", PATH_MODEL + "/info"),
    )


def add_shared_routes(app: FastAPI, service: GenerationService, endpoints: SharedEndpoints) -> None:
    """Add the other paths, behind all that begin with /models."""
    openai, tgi = endpoints.openai, endpoints.tgi
    invocations = [
        BodyEndpoint(("inputs",), tgi.generate_at_root, (GenerateBody,)),
        BodyEndpoint(("messages",), openai.create_chat_completion, (ChatCompletionBody,)),
        BodyEndpoint(("prompt",), openai.create_completion, (CompletionBody,)),
    ]
    tokenize = [
        BodyEndpoint(("inputs",), tgi.tokenize, (InputsBody,)),
        BodyEndpoint(("messages", "prompt"), endpoints.tokenizers.tokenize, (TokenizePromptBody, TokenizeChatBody)),
    ]
    _add_post(app, service, "/tokenize", tokenize, aliases=("/v1/tokenize", "/v1/tokenize/"))
    _add_post(app, service, "/invocations", invocations)
    _add_root(app, service, tgi)


def _add_root(app: FastAPI, service: GenerationService, tgi: TgiEndpoints) -> None:
    async def root(request: Request) -> Response:
        """GET /: a page for browsers, and TGI's health for all others."""
        usable = usable_models(request, service.models)
        if _prefers_html(request.headers.get("accept", "")):
            names = None if recognized_caller(request).is_stranger else usable
            page = _page(names, request.scope.get("root_path", ""))
            return Response(page, headers=_HTML_HEADERS, media_type="text/html")
        if usable and all(model.generator.status().ready for model in usable.values()):
            return Response(headers={"Vary": "Accept"})
        return json_response(json.dumps(UNHEALTHY).encode(), 503, {"Retry-After": "1", "Vary": "Accept"})

    add_route(app, "GET", "/", root, errors=TGI_ERRORS, error_schema="TgiError", is_json=False)
    app.router.add_route("/", root, methods=["HEAD"], include_in_schema=False)
    add_route(
        app,
        "POST",
        "/",
        tgi.generate_at_root,
        errors=TGI_ERRORS,
        error_schema="TgiError",
        aliases=[PATH_MODEL],
        bodies=[GenerateBody],
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


def _page(models: Iterable[str] | None, root_path: str) -> str:
    """Write the page, with these models; with None for callers that may see none."""
    root = escape(root_path)
    if models is None:
        return _PAGE.format(content=_FOR_STRANGERS, root=root, links="")
    names = "".join(f"<li>{escape(name)}</li>" for name in models) or "<li>none yet</li>"
    return _PAGE.format(content=_FOR_CALLERS.format(models=names), root=root, links=_LINKS.format(root=root))
