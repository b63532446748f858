"""Routes of these paths, with the aliases that clients use."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from rayinfer.servers.documented_routes import Endpoint, add_body_schemas, add_route
from rayinfer.servers.openapi import GENERATION_ERRORS
from rayinfer.servers.pooling.cohere import COHERE_EMBED, CohereEndpoint
from rayinfer.servers.pooling.embeddings import InputEndpoints
from rayinfer.servers.pooling.schemas import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingsBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
)
from rayinfer.servers.pooling.scores import ScoreEndpoints
from rayinfer.servers.prediction.service import PredictionService

PREDICTION_ERRORS = (*GENERATION_ERRORS, 422)

_EMBEDDINGS = ("/v1/embeddings", "/embeddings")
_SCORE = ("/score", "/v1/score")
_CLASSIFY = ("/classify", "/v1/classify")
_POOLING = ("/pooling", "/v1/pooling")
RERANK = ("/v1/rerank", "/v2/rerank")  # /rerank is TEI's as well
POOLING_PATHS = tuple(
    path + end
    for path in (*_EMBEDDINGS, *_SCORE, *_CLASSIFY, *_POOLING, *RERANK, "/rerank", COHERE_EMBED)
    for end in ("", "/")
)


def add_pooling_routes(app: FastAPI, service: PredictionService) -> None:
    """Add the paths to an application, but for those that others share."""
    inputs, scores = InputEndpoints(service), ScoreEndpoints(service)
    routes: tuple[tuple[Sequence[str], Endpoint, type[BaseModel]], ...] = (
        (_EMBEDDINGS, inputs.create_embeddings, EmbeddingsBody),
        (RERANK, scores.rerank, RerankBody),
        (_SCORE, scores.score, ScoreBody),
        (_CLASSIFY, inputs.classify, ClassifyBody),
        (_POOLING, inputs.pool, PoolingBody),
        ((COHERE_EMBED,), CohereEndpoint(service).embed, CohereEmbedBody),
    )
    for paths, endpoint, body in routes:
        options: dict[str, Any] = {"errors": PREDICTION_ERRORS, "error_schema": "ErrorResponse", "bodies": [body]}
        aliases = [alias for path in paths for alias in (path, path + "/")][1:]
        add_route(app, "POST", paths[0], endpoint, aliases=aliases, **options)
    add_body_schemas(app, [body for _, _, body in routes])
