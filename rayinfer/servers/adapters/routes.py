"""Paths of vLLM that load and unload adapters, and a list of all of them."""

import json
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from rayinfer.errors import InvalidParameter
from rayinfer.servers.adapters.registry import AdapterRegistry
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.json_body import decode_object, read_body
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openapi import BODY_ERRORS, READ_ERRORS, json_request_body, responses
from rayinfer.servers.served_model import ServedAdapter

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"
LIST_PATH = "/v1/lora_adapters"
MAX_PATH_CHARS = 4096

Text = Annotated[str | None, Field(max_length=MAX_PATH_CHARS)]


class LoadAdapterBody(BaseModel):
    """Body of a request that loads an adapter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: Text = None
    lora_path: Text = None
    load_inplace: bool = False
    base_model_name: Text = None


class UnloadAdapterBody(BaseModel):
    """Body of a request that unloads an adapter; vLLM's number of it may be given, and says nothing here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: Text = None
    lora_int_id: int | None = None


def add_adapter_routes(app: FastAPI, adapters: AdapterRegistry | None) -> None:
    """Add the paths, which change what is served: they are for operators, and off unless the service allows them."""
    if adapters is None or not adapters.may_change:
        return

    async def load_lora_adapter(request: Request) -> Response:
        """POST /v1/load_lora_adapter: serve the adapter of a folder under a name."""
        body = check_schema(LoadAdapterBody, decode_object(await read_body(request)))
        if not body.lora_name or not body.lora_path:
            missing = "lora_path" if body.lora_name else "lora_name"
            raise InvalidParameter("Both 'lora_name' and 'lora_path' must be provided.", missing)
        await adapters.load(body.lora_name, body.lora_path, base=body.base_model_name, in_place=body.load_inplace)
        return _text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_lora_adapter(request: Request) -> Response:
        """POST /v1/unload_lora_adapter: serve a name no more; running requests finish."""
        body = check_schema(UnloadAdapterBody, decode_object(await read_body(request)))
        if not body.lora_name:
            raise InvalidParameter("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        await adapters.unload(body.lora_name)
        return _text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def list_lora_adapters() -> Response:
        """GET /v1/lora_adapters: all adapters, with their folders and digests."""
        found = [adapter_entry(adapter) for adapter in adapters.adapters]
        return json_response(json.dumps({"object": "list", "data": found}).encode())

    for path, endpoint, schema in (
        (LOAD_PATH, load_lora_adapter, LoadAdapterBody),
        (UNLOAD_PATH, unload_lora_adapter, UnloadAdapterBody),
    ):
        described = responses(None, 401, 403, 404, 503, *BODY_ERRORS)
        described[200]["content"] = {"text/plain": {"schema": {"type": "string"}}}
        add_documented_route(
            app,
            path,
            endpoint,
            methods=["POST"],
            responses=described,
            openapi_extra=json_request_body(schema.model_json_schema()),
        )
    listed = responses({"type": "object", "required": ["object", "data"]}, 401, 403, *READ_ERRORS)
    add_documented_route(app, LIST_PATH, list_lora_adapters, methods=["GET"], responses=listed)


def adapter_entry(adapter: ServedAdapter) -> dict[str, Any]:
    """Describe an adapter to operators."""
    return {
        "name": adapter.name,
        "base": adapter.base,
        "folder": adapter.folder,
        "digest": adapter.digest,
        "origin": adapter.origin,
    }


def _text(line: str) -> Response:
    return Response(line, media_type="text/plain")
