"""Endpoints of the Responses API."""

import json
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import find_usable_model, request_context
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.responses import StreamedResponse, WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.batches.file_endpoints import owner_of
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.responses.answers import ResponseAnswer, ResponseEvents
from rayinfer.servers.openai.responses.background import BackgroundResponses
from rayinfer.servers.openai.responses.requests import ResponsesRequest, responses_request
from rayinfer.servers.openai.responses.schemas import ResponsesBody
from rayinfer.servers.openai.responses.store import ResponseStore

MAX_PAGE = 100


class ResponsesEndpoints:
    """The paths below /v1/responses."""

    def __init__(self, service: GenerationService, store: ResponseStore) -> None:
        self._service = service
        self._store = store
        self._background = BackgroundResponses(store)

    async def create(self, request: Request) -> Response:
        """POST /v1/responses: a response to texts or a conversation."""
        owner = owner_of(request)

        def prepare(raw: dict[str, Any]) -> ResponsesRequest:
            body = check_schema(ResponsesBody, raw)
            model = find_usable_model(request, self._service.models, body.model, "generate")
            return responses_request(body, model, self._service, partial(self._store.find, owner))

        prepared = await self._service.prepare(request, prepare)
        await self._service.check_grammar(prepared.chat.generation)
        context = request_context(request)
        response_id = f"resp_{uuid.uuid4().hex}"  # ours, as it is looked up by it
        outputs = self._service.start(context, prepared.chat.generation, response_id)
        answer = ResponseAnswer(prepared, response_id, partial(self._store.save, owner))
        if prepared.body.background:
            body = answer.response("queued")
            answer.save(body)
            self._background.begin(response_id, answer, outputs)
            return _json(body)
        if prepared.body.stream:
            return StreamedResponse(outputs, ResponseEvents(answer))
        return WholeResponse(outputs, answer, answer.body)

    async def retrieve(self, request: Request, response_id: str) -> Response:
        """GET /v1/responses/{response_id}: a stored response."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise InvalidParameter("stream is not supported here.", "stream", "unsupported_parameter")
        return _json(self._store.find(owner_of(request), response_id).body)

    async def delete(self, request: Request, response_id: str) -> Response:
        """DELETE /v1/responses/{response_id}: delete a stored response."""
        self._store.delete(owner_of(request), response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request, response_id: str) -> Response:
        """POST /v1/responses/{response_id}/cancel: one in the background; one that is complete stays as it is."""
        owner = owner_of(request)
        if not self._store.find(owner, response_id).body["background"]:
            raise InvalidParameter("Only a response in the background can be cancelled.", "response_id")
        return _json(self._store.cancel(owner, response_id).body)

    async def list_input_items(self, request: Request, response_id: str) -> Response:
        """GET /v1/responses/{response_id}/input_items: newest first unless `order` is asc."""
        items = list(self._store.find(owner_of(request), response_id).input)
        query = request.query_params
        if query.get("order", "desc") != "asc":
            items.reverse()
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
            raise InvalidParameter(f"limit must be an integer from 1 to {MAX_PAGE}, got {limit!r:.80}", "limit")
        names = [item["id"] for item in items]
        if (after := query.get("after")) is not None:
            if after not in names:
                raise InvalidParameter(f"after: there is no item {after!r:.100}", "after")
            items = items[names.index(after) + 1 :]
        page = items[: int(limit)]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
        return _json({"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})


def _json(body: Mapping[str, Any]) -> Response:
    return json_response(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
