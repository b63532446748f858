"""Scores of pairs of texts, and documents in the order of their relevance to a query."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from rayinfer.errors import InvalidParameter
from rayinfer.predictions import PredictionOutput
from rayinfer.servers.caller import find_usable_model, request_context
from rayinfer.servers.openai.priority_header import header_priority
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.pooling.response_head import response_head, usage
from rayinfer.servers.pooling.schemas import PoolingSettings, RerankBody, ScoreBody
from rayinfer.servers.prediction.number_encoding import json_object
from rayinfer.servers.prediction.pair_scores import PairScores, prepare_pairs
from rayinfer.servers.prediction.service import PredictionService
from rayinfer.servers.prediction.text_items import TextSettings
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel


class ScoreEndpoints:
    """Paths that compare texts."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service

    async def score(self, request: Request) -> Response:
        """POST /score: one text with each of others, or two lists pair by pair."""
        body, pairs = await self._service.prepare(request, partial(self._check_score, request))
        context = request_context(request)
        if body.request_id:
            context.identity.rename(body.request_id)
        head = response_head("score", context.identity.name, pairs.prepared.model.name)

        def encode(outputs: list[PredictionOutput]) -> bytes:
            scores = pairs.read(outputs)
            data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
            return json_object(head | {"data": data, "usage": usage(pairs.prepared.num_tokens)})

        return self._service.respond(context, pairs.prepared, head["id"], encode)

    async def rerank(self, request: Request) -> Response:
        """POST /rerank, as Jina and Cohere have it."""
        body, documents, pairs = await self._service.prepare(request, partial(self._check_rerank, request))
        context = request_context(request)
        if body.request_id:
            context.identity.rename(body.request_id)
        response_id = f"rerank-{context.identity.name}"
        is_cohere = request.url.path.rstrip("/").endswith("/v2/rerank")  # which returns no documents by default
        returns = not is_cohere if body.return_documents is None else body.return_documents

        def encode(outputs: list[PredictionOutput]) -> bytes:
            results: list[dict[str, Any]] = [
                {"index": index, "relevance_score": score} for index, score in pairs.ranked(outputs)[: body.top_n]
            ]
            if returns:
                for result in results:
                    result["document"] = {"text": documents[result["index"]]}
            return json_object(
                {
                    "id": response_id,
                    "model": pairs.prepared.model.name,
                    "usage": usage(pairs.prepared.num_tokens),
                    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
                    "results": results,
                }
            )

        return self._service.respond(context, pairs.prepared, response_id, encode)

    def _check_score(self, request: Request, raw: dict[str, Any]) -> tuple[ScoreBody, PairScores]:
        body = check_schema(ScoreBody, raw)
        body.check_ranges()
        first_name, second_name = ("text_1", "text_2") if body.text_1 is not None else ("queries", "documents")
        limits = self._service.limits
        first = _texts(getattr(body, first_name), first_name, limits)
        second = _texts(getattr(body, second_name), second_name, limits)
        if len(first) not in (1, len(second)):
            raise InvalidParameter(
                f"{first_name} must be one text or as many as {second_name}, got {len(first)} and {len(second)}",
                first_name,
            )
        firsts = first * len(second) if len(first) == 1 else first
        pairs = list(zip(firsts, second, strict=True))
        return body, self._prepare(request, body, pairs, second_name)

    def _check_rerank(self, request: Request, raw: dict[str, Any]) -> tuple[RerankBody, list[str], PairScores]:
        body = check_schema(RerankBody, raw)
        body.check_ranges()
        documents = _documents(body.documents, self._service.limits)
        model = self._find(request, body)
        shown = documents
        if (most := body.max_tokens_per_doc) is not None:
            shown = [_first_tokens(model, document, most) for document in documents]
        return body, documents, self._prepare(request, body, [(body.query, each) for each in shown], "documents")

    def _prepare(
        self, request: Request, body: PoolingSettings, pairs: Sequence[tuple[str, str]], param: str
    ) -> PairScores:
        priority = header_priority(request)
        return prepare_pairs(
            self._find(request, body),
            pairs,
            param,
            TextSettings(truncate_to=body.truncate_prompt_tokens, truncation_side=body.truncation_side or "right"),
            is_raw=body.use_activation is False,
            priority=(body.priority or 0) if priority is None else priority,
            cache_salt=body.cache_salt or "",
        )

    def _find(self, request: Request, body: PoolingSettings) -> ServedModel:
        name = request.path_params.get("model") if body.model is None else body.model
        return find_usable_model(request, self._service.generation.models, name, "score", "embed")


def _texts(value: Any, param: str, limits: RequestLimits) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or any(not isinstance(text, str) or not text for text in texts):
        raise InvalidParameter(f"{param} must be a text or a list of texts, none of them empty", param)
    limits.check_num_inputs(len(texts), param)
    return texts


def _documents(value: Any, limits: RequestLimits) -> list[str]:
    """Return the texts of documents, which may be objects."""
    if not isinstance(value, list):
        raise InvalidParameter("documents must be a list", "documents")
    limits.check_num_inputs(len(value), "documents")
    documents: list[str] = []
    for index, each in enumerate(value):
        document = each.get("text") if isinstance(each, dict) else each
        if not isinstance(document, str):
            raise InvalidParameter(
                f"documents.{index} must be a text, or an object with one as `text`", f"documents.{index}"
            )
        documents.append(document)
    return documents


def _first_tokens(model: ServedModel, text: str, num_tokens: int) -> str:
    located = model.tokenizer.locate_tokens(text, add_special_tokens=False)
    return text if len(located) <= num_tokens else text[: located[num_tokens - 1].stop]
