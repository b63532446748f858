"""The form of errors in each protocol; paths decide which."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rayinfer.servers.access.open_paths import route_path


@dataclass(frozen=True, slots=True)
class PublicError:
    """Content of an error that a client may see, before a protocol gives it a form."""

    status: int
    type: str  # OpenAI's
    message: str
    param: str | None = None
    code: str | None = None


# Returns the status and the JSON of the body.
ErrorFormat = Callable[[PublicError], tuple[int, dict[str, Any]]]


def openai_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write OpenAI's envelope."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return error.status, {"error": body}


def kserve_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write the Open Inference Protocol's form, in which the error is a string."""
    return error.status, {"error": error.message}


def tgi_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write TGI's form, which has statuses and types of its own.

    Bodies that are no JSON keep 400, and so do requests for no particular one of several models.
    """
    status, message = error.status, error.message
    if status == 400 and error.code not in ("invalid_json", "model_required"):
        status, message = 422, f"Input validation error: {message}"
    elif status == 500:
        status = 424
    return status, {"error": message, "error_type": _TGI_TYPES.get(error.status, "validation")}


def tei_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write TEI's form: TGI's statuses, and types of its own."""
    status, body = tgi_error(error)
    return status, body | {"error_type": _TEI_TYPES.get(error.status, "Validation")}


def megatron_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write the form that Megatron's client of its `/api` reads."""
    return error.status, {"message": error.message}


def ollama_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write Ollama's form, in which the error is a string."""
    return error.status, {"error": error.message}


def anthropic_error(error: PublicError) -> tuple[int, dict[str, Any]]:
    """Write Anthropic's form, whose types follow the status."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return error.status, {"type": "error", "error": {"type": kind, "message": error.message}}


_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_TGI_TYPES: Mapping[int, str] = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    408: "timeout",
    429: "overloaded",
    500: "generation",
    503: "overloaded",
    504: "incomplete_generation",
}

_TEI_TYPES: Mapping[int, str] = {
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Backend",
}

_OLLAMA_PATHS = (
    *("chat", "generate", "tags", "show", "ps", "version", "pull", "push", "create", "copy", "delete"),
    *("embed", "embeddings", "blobs"),
)

# By the beginning of a path.
_FORMATS: tuple[tuple[str, ErrorFormat], ...] = (
    *((path, openai_error) for path in ("/v2/rerank", "/v2/embed")),  # Cohere's
    ("/v2", kserve_error),
    *((path, tgi_error) for path in ("/generate", "/generate_stream", "/chat_tokenize", "/info")),
    *((path, tei_error) for path in ("/embed", "/embed_all", "/predict", "/similarity", "/decode")),
    *((f"/api/{name}", ollama_error) for name in _OLLAMA_PATHS),
    ("/api", megatron_error),
    ("/v1/messages", anthropic_error),
)
_MODEL_PATHS = "/models/"
ANTHROPIC_VERSION = b"anthropic-version"


def error_format_of(scope: Mapping[str, Any]) -> ErrorFormat:
    """Return the format for a request by its path, unless its endpoint has chosen one (`choose_error_format`)."""
    chosen: ErrorFormat | None = scope.get("state", {}).get("error_format")
    if chosen is not None:
        return chosen
    path = route_path(scope)
    if path.startswith(_MODEL_PATHS):  # /models/NAME/generate has the form of /generate
        path = path[path.rindex("/") :]
    if path == "/":
        return tgi_error
    if (path + "/").startswith("/v1/models/") and speaks_anthropic(scope):
        return anthropic_error
    if path.startswith("/v1/models/") and path.endswith((":predict", ":explain")):
        return kserve_error
    return next((form for prefix, form in _FORMATS if path == prefix or path.startswith(prefix + "/")), openai_error)


def speaks_anthropic(scope: Mapping[str, Any]) -> bool:
    """Return whether a request has the header of Anthropic's clients."""
    return any(name == ANTHROPIC_VERSION for name, _ in scope.get("headers", ()))


def choose_error_format(scope: Mapping[str, Any], form: ErrorFormat) -> None:
    """Have errors of this request written in another protocol's form than its path suggests."""
    scope["state"]["error_format"] = form
