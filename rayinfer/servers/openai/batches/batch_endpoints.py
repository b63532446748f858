"""Endpoints of OpenAI's Batches API."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.batches.records import BATCH_ENDPOINTS, NewBatch, SharedBatches
from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import caller_of
from rayinfer.servers.json_body import decode_object, read_body
from rayinfer.servers.openai.batches.file_endpoints import as_response, expires_after_s, owner_of, page

MAX_METADATA, MAX_METADATA_KEY_CHARS, MAX_METADATA_CHARS = 16, 64, 512
MAX_WINDOW_DAYS = 30
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([hd])")
_WINDOW_S = {"h": 3600.0, "d": 86400.0}
_FIELDS = {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}


class BatchEndpoints:
    """The paths below /v1/batches; `on_batch` is called when one may have begun."""

    def __init__(self, batches: SharedBatches, on_batch: Callable[[], None]) -> None:
        self._batches = batches
        self._on_batch = on_batch

    async def create(self, request: Request) -> Response:
        """POST /v1/batches: start a batch over a file's requests."""
        new = _new_batch(request, decode_object(await read_body(request)))
        batch = await self._batches.create_batch(new)
        self._on_batch()
        return as_response(batch.as_json())

    async def list(self, request: Request) -> Response:
        """GET /v1/batches: batches of the caller."""
        batches = await self._batches.list_batches(owner_of(request))
        return page(request, [batch.as_json() for batch in batches])

    async def retrieve(self, request: Request, batch_id: str) -> Response:
        """GET /v1/batches/{batch_id}: one batch."""
        batch = await self._batches.find_batch(owner_of(request), batch_id)
        return as_response(batch.as_json())

    async def cancel(self, request: Request, batch_id: str) -> Response:
        """POST /v1/batches/{batch_id}/cancel: cancel a batch."""
        batch = await self._batches.cancel_batch(owner_of(request), batch_id)
        self._on_batch()
        return as_response(batch.as_json())


def _new_batch(request: Request, body: Mapping[str, Any]) -> NewBatch:
    if unknown := sorted(set(body) - _FIELDS):
        raise InvalidParameter(f"Unknown parameter: {unknown[0]!r:.80}.", unknown[0][:80])
    endpoint, input_file_id = body.get("endpoint"), body.get("input_file_id")
    if endpoint not in BATCH_ENDPOINTS:
        raise InvalidParameter(f"endpoint must be one of {', '.join(BATCH_ENDPOINTS)}.", "endpoint")
    if not isinstance(input_file_id, str):
        raise InvalidParameter("input_file_id must be the id of an uploaded file.", "input_file_id")
    caller, window = caller_of(request), body.get("completion_window")
    expiry = body.get("output_expires_after") or {}
    if not isinstance(expiry, dict):
        raise InvalidParameter("output_expires_after must be an object.", "output_expires_after")
    return NewBatch(
        owner=owner_of(request),
        key_id=caller.key_id,
        tenant=caller.tenant,
        endpoint=endpoint,
        input_file_id=input_file_id,
        completion_window=str(window),
        window_s=_window_s(window),
        metadata=_metadata(body.get("metadata")),
        output_expires_after_s=expires_after_s(expiry.get("anchor"), expiry.get("seconds"), "output_expires_after"),
    )


def _window_s(window: object) -> float:
    found = _WINDOW.fullmatch(window) if isinstance(window, str) else None
    seconds = 0.0 if found is None else int(found[1]) * _WINDOW_S[found[2]]
    if not 0 < seconds <= MAX_WINDOW_DAYS * 86400:
        raise InvalidParameter(
            f"completion_window must be hours or days, at most {MAX_WINDOW_DAYS}d: 24h, for example.",
            "completion_window",
        )
    return seconds


def _metadata(metadata: object) -> Mapping[str, str] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or len(metadata) > MAX_METADATA:
        raise InvalidParameter(f"metadata must be an object of at most {MAX_METADATA} pairs.", "metadata")
    for name, value in metadata.items():
        is_text = isinstance(value, str) and len(value) <= MAX_METADATA_CHARS
        if not is_text or len(name) > MAX_METADATA_KEY_CHARS:
            raise InvalidParameter(
                f"metadata has keys of at most {MAX_METADATA_KEY_CHARS} and texts of at most {MAX_METADATA_CHARS} "
                "characters.",
                "metadata",
            )
    return metadata
