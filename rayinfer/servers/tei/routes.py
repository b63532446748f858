"""Routes of TEI's own paths, also below /models/NAME; those that other protocols share are in `shared_paths.py`."""

from fastapi import FastAPI
from pydantic import BaseModel

from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.openapi import TGI_ERRORS
from rayinfer.servers.path_models import PATH_MODEL
from rayinfer.servers.prediction.service import PredictionService
from rayinfer.servers.tei.endpoints import TeiEndpoints
from rayinfer.servers.tei.information import TeiInformation
from rayinfer.servers.tei.schemas import (
    DecodeBody,
    EmbedBody,
    PredictBody,
    SimilarityBody,
    TeiRerankBody,
    TeiTokenizeBody,
)

EMBED, EMBED_ALL, PREDICT, SIMILARITY, DECODE = "/embed", "/embed_all", "/predict", "/similarity", "/decode"
TEI_PATHS = tuple(path + end for path in (EMBED, EMBED_ALL, PREDICT, SIMILARITY) for end in ("", "/"))


def add_tei_routes(app: FastAPI, service: PredictionService) -> None:
    """Add the paths that are TEI's alone to an application."""
    endpoints, information = TeiEndpoints(service), TeiInformation(service.generation)
    for path, endpoint, body in (
        (EMBED, endpoints.embed, EmbedBody),
        (EMBED_ALL, endpoints.embed_all, EmbedBody),
        (PREDICT, endpoints.predict, PredictBody),
        (SIMILARITY, endpoints.similarity, SimilarityBody),
        (DECODE, information.decode, DecodeBody),
    ):
        add_route(
            app,
            "POST",
            path,
            endpoint,
            errors=TGI_ERRORS,
            error_schema="TgiError",
            aliases=(path + "/", PATH_MODEL + path),
            bodies=[body],
        )
    bodies: list[type[BaseModel]] = [EmbedBody, PredictBody, SimilarityBody, DecodeBody, TeiRerankBody, TeiTokenizeBody]
    add_body_schemas(app, bodies)
