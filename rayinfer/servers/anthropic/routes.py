"""Routes of Anthropic's paths; its lists of models share OpenAI's paths."""

from fastapi import FastAPI

from rayinfer.servers.anthropic.endpoints import AnthropicEndpoints
from rayinfer.servers.anthropic.schemas import CountTokensBody, MessagesBody
from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.openapi import BODY_ERRORS, GENERATION_ERRORS

MESSAGES = "/v1/messages"
COUNT_TOKENS = MESSAGES + "/count_tokens"
_SCHEMA = "AnthropicError"


def add_anthropic_routes(app: FastAPI, endpoints: AnthropicEndpoints) -> None:
    """Add Anthropic's own paths to an application."""
    add_route(
        app,
        "POST",
        MESSAGES,
        endpoints.create_message,
        errors=GENERATION_ERRORS,
        error_schema=_SCHEMA,
        aliases=[MESSAGES + "/"],
        bodies=[MessagesBody],
        streams=True,
    )
    add_route(
        app,
        "POST",
        COUNT_TOKENS,
        endpoints.count_tokens,
        errors=BODY_ERRORS,
        error_schema=_SCHEMA,
        bodies=[CountTokensBody],
    )
    add_body_schemas(app, [MessagesBody, CountTokensBody])
