"""`GET /v1/usage`: the usage of keys by day and model."""

import json

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.access.access_control import AccessControl
from rayinfer.access.api_key import Scope
from rayinfer.access.usage import described, first_of_days
from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import caller_of
from rayinfer.servers.documented_routes import add_documented_route
from rayinfer.servers.error_responses import json_response

PATH = "/v1/usage"
DEFAULT_DAYS = "30"
MAX_DAYS = 3660


def add_usage_routes(app: FastAPI, access: AccessControl, price_per_engine_hour: float) -> None:
    """Add the path to an application."""

    async def read_usage(request: Request) -> Response:
        """Return the usage of the last `days`: of the caller's key, or of all with the scope operate."""
        key = caller_of(request).key
        key_id = None if key is not None and Scope.OPERATE in key.scopes else caller_of(request).key_id
        rows, names = await access.usage(first_of_days(_num_days(request)), key_id)
        data = described(rows, names, price_per_engine_hour)
        return json_response(json.dumps({"object": "list", "data": data}).encode())

    add_documented_route(app, PATH, read_usage, methods=["GET"])
    add_documented_route(app, PATH + "/", read_usage, methods=["GET"], include_in_schema=False)


def _num_days(request: Request) -> int:
    days = request.query_params.get("days", DEFAULT_DAYS)
    if not (days.isascii() and days.isdigit() and len(days) <= 4 and 1 <= int(days) <= MAX_DAYS):
        raise InvalidParameter(f"days must be 1 to {MAX_DAYS}, got {days!r:.80}", "days")
    return int(days)
