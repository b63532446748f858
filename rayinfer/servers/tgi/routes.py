"""Routes of TGI's own paths, also below /models/NAME; those that other protocols share are in `shared_paths.py`."""

from fastapi import FastAPI

from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.openai.schemas import ConversationBody
from rayinfer.servers.openapi import TGI_ERRORS
from rayinfer.servers.path_models import PATH_MODEL
from rayinfer.servers.tgi.endpoints import TgiEndpoints
from rayinfer.servers.tgi.schemas import GenerateBody, InputsBody

GENERATE, GENERATE_STREAM, CHAT_TOKENIZE = "/generate", "/generate_stream", "/chat_tokenize"
TGI_GENERATION_PATHS = ("/", "/invocations", *(path + end for path in (GENERATE, GENERATE_STREAM) for end in ("", "/")))


def add_tgi_routes(app: FastAPI, endpoints: TgiEndpoints) -> None:
    """Add the paths that are TGI's alone to an application."""
    for path, endpoint, body in (
        (GENERATE, endpoints.generate, GenerateBody),
        (GENERATE_STREAM, endpoints.generate_stream, GenerateBody),
        (CHAT_TOKENIZE, endpoints.chat_tokenize, ConversationBody),
    ):
        add_route(
            app,
            "POST",
            path,
            endpoint,
            errors=TGI_ERRORS,
            error_schema="TgiError",
            aliases=(path + "/", PATH_MODEL + path),
            bodies=[body],
            streams=path == GENERATE_STREAM,
        )
    add_body_schemas(app, [GenerateBody, InputsBody])
