"""Endpoints of OpenAI's Files API."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from rayinfer.batches.records import SharedBatches, StoredFile
from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import caller_of
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.openai.batches.upload_form import UploadForm, body_file, read_form, receive_body

PART_BYTES = 2**20
PURPOSES = ("batch", "user_data", "evals", "fine-tune", "assistants", "vision")
MIN_EXPIRES_AFTER_S, MAX_EXPIRES_AFTER_S = 3600, 30 * 86400
MAX_FILENAME_CHARS = 255
DEFAULT_PAGE, MAX_PAGE = 20, 100


class FileEndpoints:
    """The paths below /v1/files."""

    def __init__(self, batches: SharedBatches) -> None:
        self._batches = batches

    async def upload(self, request: Request) -> Response:
        """POST /v1/files: a form with `file`, `purpose` and `expires_after`."""
        with body_file() as body:
            await receive_body(request, body)
            form = await asyncio.to_thread(read_form, body, request.headers.get("content-type", ""))
            purpose = form.fields.get("purpose", "")
            if purpose not in PURPOSES:
                raise InvalidParameter(f"purpose must be one of {', '.join(PURPOSES)}, got {purpose!r:.80}.", "purpose")
            filename = form.filename[:MAX_FILENAME_CHARS] or "file"
            owner = owner_of(request)
            file_id = await self._batches.begin_file(owner, filename, purpose, _expires_after_s(form))
            for place in range(form.begin, form.end, PART_BYTES):
                part = await asyncio.to_thread(_read_part, body, place, min(form.end, place + PART_BYTES))
                await self._batches.append_file(file_id, place - form.begin, part)
            file = await self._batches.finish_file(file_id)
        return as_response(file.as_json())

    async def list(self, request: Request) -> Response:
        """GET /v1/files: files of the caller."""
        purpose = request.query_params.get("purpose")
        files = await self._batches.list_files(owner_of(request), purpose)
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidParameter(f"order must be asc or desc, got {order!r:.80}.", "order")
        if order == "asc":
            files.reverse()
        return page(request, [file.as_json() for file in files], max_limit=10_000, default_limit=10_000)

    async def retrieve(self, request: Request, file_id: str) -> Response:
        """GET /v1/files/{file_id}: one file."""
        file = await self._batches.find_file(owner_of(request), file_id)
        return as_response(file.as_json())

    async def content(self, request: Request, file_id: str) -> Response:
        """GET /v1/files/{file_id}/content: a file's content."""
        owner = owner_of(request)
        file = await self._batches.find_file(owner, file_id)
        headers = {"Content-Length": str(file.num_bytes)}
        return StreamingResponse(self._parts(owner, file), media_type="application/octet-stream", headers=headers)

    async def delete(self, request: Request, file_id: str) -> Response:
        """DELETE /v1/files/{file_id}: delete a file."""
        await self._batches.delete_file(owner_of(request), file_id)
        return as_response({"id": file_id, "object": "file", "deleted": True})

    async def _parts(self, owner: str, file: StoredFile) -> AsyncIterator[bytes]:
        for offset in range(0, file.num_bytes, PART_BYTES):
            yield await self._batches.read_file(owner, file.id, offset, PART_BYTES)


def owner_of(request: Request) -> str:
    """Return whose files and batches a request is about: its tenant's, or its key's."""
    caller = caller_of(request)
    return caller.tenant or caller.key_id


def as_response(value: Mapping[str, Any]) -> Response:
    """Answer with an object."""
    return json_response(json.dumps(value).encode())


def page(
    request: Request,
    objects: Sequence[Mapping[str, Any]],
    *,
    max_limit: int = MAX_PAGE,
    default_limit: int = DEFAULT_PAGE,
) -> Response:
    """Answer with the objects after the one that `after` names, at most `limit` of them."""
    text = request.query_params.get("limit", str(default_limit))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= max_limit):
        raise InvalidParameter(f"limit must be 1 to {max_limit}, got {text!r:.80}.", "limit")
    after, limit = request.query_params.get("after"), int(text)
    ids = [each["id"] for each in objects]
    begin = 0 if after is None else ids.index(after) + 1 if after in ids else len(ids)
    found = objects[begin : begin + limit]
    answer = {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": len(objects) > begin + limit,
    }
    return as_response(answer)


def expires_after_s(anchor: object, seconds: object, name: str) -> float | None:
    """Return the seconds of an `expires_after`, checked; None without one."""
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidParameter("expires_after.anchor must be created_at.", f"{name}.anchor")
    is_integer = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_integer or not MIN_EXPIRES_AFTER_S <= seconds <= MAX_EXPIRES_AFTER_S:  # type: ignore[operator]
        bounds = f"an integer from {MIN_EXPIRES_AFTER_S} to {MAX_EXPIRES_AFTER_S}"
        raise InvalidParameter(f"expires_after.seconds must be {bounds}.", f"{name}.seconds")
    return float(seconds)  # type: ignore[arg-type]


def _expires_after_s(form: UploadForm) -> float | None:
    seconds = form.fields.get("expires_after[seconds]")
    number = int(seconds) if seconds is not None and seconds.isascii() and seconds.isdigit() else seconds
    return expires_after_s(form.fields.get("expires_after[anchor]"), number, "expires_after")


def _read_part(body: Any, begin: int, end: int) -> bytes:
    body.seek(begin)
    part: bytes = body.read(end - begin)
    return part
