"""Parts of the OpenAPI document: what routes say of their bodies, their responses and their errors."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import WithJsonSchema

JSON = "application/json"
SCHEMA_PATH = "#/components/schemas/{model}"
NULLABLE_TEXT = {"type": ["string", "null"]}

ERROR_SCHEMAS: Mapping[str, Any] = {
    "TgiError": {
        "type": "object",
        "description": "TGI's form of errors",
        "required": ["error", "error_type"],
        "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    },
    "SharedError": {
        "anyOf": [{"$ref": "#/components/schemas/ErrorResponse"}, {"$ref": "#/components/schemas/TgiError"}]
    },
    "KServeError": {
        "type": "object",
        "description": "Form of errors of the Open Inference Protocol",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    "AnthropicError": {
        "type": "object",
        "description": "Anthropic's form of errors",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
    "MegatronError": {
        "type": "object",
        "description": "Megatron's form of errors",
        "required": ["message"],
        "properties": {"message": {"type": "string"}},
    },
    "ErrorResponse": {
        "type": "object",
        "description": "OpenAI's envelope of errors",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {**NULLABLE_TEXT, "description": "field at fault"},
                    "code": {**NULLABLE_TEXT, "description": "name for programs"},
                },
            }
        },
    },
}

_ERRORS = {
    400: "A field is missing, of the wrong type, out of range or not supported; `param` names it",
    404: "No such model, request or task here",
    408: "The request did not come in time",
    409: "Refused in the present state",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A field is missing, of the wrong type, out of range or not supported",
    424: "The service failed to generate",
    429: "Too many requests are waiting; see Retry-After",
    431: "The headers are too large",
    500: "The service failed to answer this request",
    503: "No engine can take the request now; see Retry-After",
    504: "The request's time ran out",
}
BODY_ERRORS = (400, 404, 408, 413, 415, 431, 500, 503)
GENERATION_ERRORS = (*BODY_ERRORS, 429, 504)
READ_ERRORS = (431, 500)
KSERVE_ERRORS = (400, 404, 408, 413, 415, 429, 431, 500, 503, 504)
TGI_ERRORS = (400, 404, 408, 413, 415, 422, 424, 429, 431, 500, 503, 504)

Responses = dict[int | str, dict[str, Any]]


def ranged(kind: str, **bounds: Any) -> WithJsonSchema:
    """Describe the range of a field that may be null, without checking it."""
    return WithJsonSchema({"anyOf": [{"type": kind, **bounds}, {"type": "null"}]})


def reference(schema: str) -> dict[str, Any]:
    """Refer to a schema by its name."""
    return {"$ref": SCHEMA_PATH.format(model=schema)}


def json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Describe content that is JSON."""
    return {JSON: {"schema": dict(schema)}}


def responses(schema: Mapping[str, Any] | None, *errors: int, error_schema: str = "ErrorResponse") -> Responses:
    """Describe a route's responses: its JSON, or an empty 200 without a schema, and its errors."""
    described: Responses = {200: {"description": "Success"}}
    if schema is not None:
        described[200]["content"] = json_content(schema)
    for status in sorted(errors):
        content = json_content(reference(error_schema))
        described[status] = {"description": _ERRORS.get(status, "Refused"), "content": content}
    return described


def json_request_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the body of a route that reads it itself, for FastAPI's `openapi_extra`."""
    return {"requestBody": {"required": True, "content": json_content(schema)}}


def query_parameter(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an optional parameter of the query."""
    return {"name": name, "in": "query", "required": False, "description": description, "schema": dict(schema)}


def header_parameter(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an optional header."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": dict(schema)}


def add_component_schemas(app: FastAPI, schemas: Callable[[], Mapping[str, Any]]) -> None:
    """Have an application's document hold schemas, which are made anew each time: models may come and go."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        document = build()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def remove_validation_errors(app: FastAPI) -> None:
    """Remove the 422 that FastAPI adds to every route with parameters: the service answers 400."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        document = build()
        for path in document["paths"].values():
            for operation in path.values():
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        for name in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
