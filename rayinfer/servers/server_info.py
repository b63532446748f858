"""`GET /load` and `GET /server_info`: the load of the models, and what they and the service were set to."""

import json
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import NotReady
from rayinfer.servers.caller import usable_models
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openapi import READ_ERRORS, responses
from rayinfer.servers.served_model import ServedModel, base_models

_LOAD = {
    "type": "object",
    "required": ["server_load"],
    "properties": {"server_load": {"type": "integer", "minimum": 0}},
}
_SERVER_INFO = {
    "type": "object",
    "required": ["version", "models", "request_limits"],
    "properties": {
        "version": {"type": "string"},
        "models": {"type": "object", "additionalProperties": {"type": "object", "required": ["ready"]}},
        "request_limits": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}


def add_server_info_routes(app: FastAPI, service: GenerationService) -> None:
    """Add the paths to an application."""

    async def load(request: Request) -> Response:
        """Return how many requests wait or run."""
        statuses = [model.generator.status() for model in base_models(usable_models(request, service.models)).values()]
        engines = [stats for status in statuses for stats in status.engines.values()]
        waiting = sum(status.num_waiting for status in statuses) + sum(stats.num_waiting for stats in engines)
        num_requests = waiting + sum(stats.num_running for stats in engines)
        return json_response(json.dumps({"server_load": num_requests}).encode())

    async def server_info(request: Request) -> Response:
        """Return the version, the models and the limits of requests."""
        usable = usable_models(request, service.models)
        info = {
            "version": installed_version("rayinfer"),
            "models": {name: _model_info(model) for name, model in usable.items()},
            "request_limits": service.limits.model_dump(),
        }
        return json_response(json.dumps(info).encode())

    for endpoint, schema in ((load, _LOAD), (server_info, _SERVER_INFO)):
        path = f"/{endpoint.__name__}"
        for alias in (path, path + "/"):
            add_documented_route(
                app,
                alias,
                endpoint,
                methods=["GET"],
                responses=responses(schema, *READ_ERRORS),
                include_in_schema=alias == path,
            )


def _model_info(model: ServedModel) -> dict[str, Any]:
    status = model.generator.status()
    info: dict[str, Any] = {"ready": status.ready, "reason": status.reason or None, "num_engines": len(status.engines)}
    try:
        description = model.generator.describe()
    except NotReady:
        return info
    return {
        **info,
        "max_model_len": model.max_model_len,
        "vocab_size": description.vocab_size,
        "block_size": description.block_size,
        "num_kv_blocks": description.kv_blocks_total,
        "max_num_seqs": description.max_num_seqs,
        "max_num_batched_tokens": description.max_num_batched_tokens,
        "default_sampling_params": dict(description.default_sampling_params),
    }
