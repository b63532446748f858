"""`GET /v1/requests` and `/v1/requests/{id}/trace`: recent requests, and what happened to one of them and when."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.access.api_key import Scope
from rayinfer.errors import InvalidParameter, TraceNotFound
from rayinfer.servers.caller import caller_of
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.openapi import READ_ERRORS, query_parameter, responses
from rayinfer.servers.request_bounds import cleaned_name
from rayinfer.servers.served_model import ServedModel
from rayinfer.servers.traces.request_summary import summary_of
from rayinfer.traces.trace_store import StoredTrace, TraceStore

LIST_PATH = "/v1/requests"
PATH = "/v1/requests/{request_id}/trace"
DEFAULT_LIMIT = "50"
MAX_LIMIT = 500
SWITCHED_OFF = "Traces are not kept here: the service runs with trace_requests=false."


_EVENT = {
    "type": "object",
    "required": ["name", "time_s", "details"],
    "properties": {"name": {"type": "string"}, "time_s": {"type": "number"}, "details": {"type": "object"}},
}
_TRACE = {
    "type": "object",
    "required": ["id", "object", "model", "events", "num_events_dropped"],
    "properties": {"events": {"type": "array", "items": _EVENT}, "num_events_dropped": {"type": "integer"}},
}
_REQUESTS = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "model", "received_s", "state"],
                "properties": {"state": {"enum": ["queued", "running", "finished"]}},
            },
        },
    },
}
_TRACES = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _TRACE}},
}


def add_trace_routes(app: FastAPI, traces: TraceStore | None, models: Mapping[str, ServedModel]) -> None:
    """Add the paths to an application; None stands for a service that keeps no traces, and they answer so."""

    async def list_requests(request: Request) -> Response:
        """Return the latest requests of the tenant, or of all tenants with the scope operate; without their texts.

        Prompts are there only where the service keeps them (trace_prompts).
        """
        if traces is None:
            raise TraceNotFound(SWITCHED_OFF, "trace_requests", "traces_switched_off")
        caller = caller_of(request)
        sees_all = caller.key is not None and caller.has_scope(Scope.OPERATE)
        found = traces.recent(None if sees_all else caller.tenant, _limit(request))
        data = [summary_of(kept, models.get(kept.model), names_tenant=sees_all) for kept in found]
        return json_response(json.dumps({"object": "list", "data": data}).encode())

    async def read_trace(request: Request, request_id: str) -> Response:
        """Return the traces of the tenant's requests of this id or name, the latest first."""
        if traces is None:
            raise TraceNotFound(SWITCHED_OFF, "trace_requests", "traces_switched_off")
        caller = caller_of(request)
        # A client that chose a name may not know how it was cleaned.
        names = (request_id, cleaned_name(request_id))
        found = traces.find(names[0], caller.tenant) or traces.find(names[1], caller.tenant)
        if not found and caller.key is not None and caller.has_scope(Scope.OPERATE):
            found = traces.find_of_all_tenants(names[0]) or traces.find_of_all_tenants(names[1])
        if not found:
            raise TraceNotFound(
                f"No trace of a request {request_id!r:.200}: it is unknown here, or its trace is no longer kept.",
                "request_id",
            )
        data = [_as_json(kept) for kept in found]
        return json_response(json.dumps({"object": "list", "data": data}).encode())

    limit = query_parameter(
        "limit", f"how many at most, up to {MAX_LIMIT}", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}
    )
    add_documented_route(
        app,
        LIST_PATH,
        list_requests,
        methods=["GET"],
        responses=responses(_REQUESTS, 400, 404, *READ_ERRORS),
        openapi_extra={"parameters": [limit]},
    )
    described = responses(_TRACES, 400, 404, *READ_ERRORS)
    add_documented_route(app, PATH, read_trace, methods=["GET"], responses=described)
    add_documented_route(app, PATH + "/", read_trace, methods=["GET"], include_in_schema=False)


def _limit(request: Request) -> int:
    limit = request.query_params.get("limit", DEFAULT_LIMIT)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MAX_LIMIT):
        raise InvalidParameter(f"limit must be 1 to {MAX_LIMIT}, got {limit!r:.80}", "limit")
    return int(limit)


def _as_json(kept: StoredTrace) -> dict[str, Any]:
    events = [{"name": event.name, "time_s": event.time_s, "details": event.details} for event in kept.trace.in_order()]
    return {
        "id": kept.response_id,
        "object": "request.trace",
        "model": kept.model,
        "events": events,
        "num_events_dropped": kept.trace.num_dropped,
    }
