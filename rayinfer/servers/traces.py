"""`GET /v1/requests/{id}/trace`: what happened to a request, and when."""

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.access.api_key import Scope
from rayinfer.errors import TraceNotFound
from rayinfer.servers.caller import caller_of
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.openapi import READ_ERRORS, responses
from rayinfer.servers.request_bounds import cleaned_name
from rayinfer.traces.trace_store import StoredTrace, TraceStore

PATH = "/v1/requests/{request_id}/trace"
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
_TRACES = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _TRACE}},
}


def add_trace_routes(app: FastAPI, traces: TraceStore | None) -> None:
    """Add the path to an application; None stands for a service that keeps no traces, and the path answers so."""

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

    described = responses(_TRACES, 400, 404, *READ_ERRORS)
    app.add_api_route(PATH, read_trace, methods=["GET"], response_class=Response, responses=described)
    app.add_api_route(PATH + "/", read_trace, methods=["GET"], response_class=Response, include_in_schema=False)


def _as_json(kept: StoredTrace) -> dict[str, Any]:
    events = [{"name": event.name, "time_s": event.time_s, "details": event.details} for event in kept.trace.in_order()]
    return {
        "id": kept.response_id,
        "object": "request.trace",
        "model": kept.model,
        "events": events,
        "num_events_dropped": kept.trace.num_dropped,
    }
