"""Routes of the Files and Batches APIs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from rayinfer.batches.records import SharedBatches
from rayinfer.servers.documented_routes import Endpoint, add_route
from rayinfer.servers.openai.batches.batch_endpoints import BatchEndpoints
from rayinfer.servers.openai.batches.file_endpoints import FileEndpoints

FILES = "/v1/files"
BATCHES = "/v1/batches"
_ERRORS = (400, 404, 408, 413, 415, 429, 431, 500, 503)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchServices:
    """Services behind the paths: the owner, and a function to call when a batch may have begun."""

    shared: SharedBatches
    on_batch: Callable[[], None]
    max_file_bytes: int


def add_batch_routes(app: FastAPI, services: BatchServices | None) -> None:
    """Add the paths to an application that has batches."""
    if services is None:
        return
    files, endpoints = FileEndpoints(services.shared), BatchEndpoints(services.shared, services.on_batch)
    routes: tuple[tuple[str, str, Endpoint | Any], ...] = (
        ("POST", FILES, files.upload),
        ("GET", FILES, files.list),
        ("GET", FILES + "/{file_id}", files.retrieve),
        ("GET", FILES + "/{file_id}/content", files.content),
        ("DELETE", FILES + "/{file_id}", files.delete),
        ("POST", BATCHES, endpoints.create),
        ("GET", BATCHES, endpoints.list),
        ("GET", BATCHES + "/{batch_id}", endpoints.retrieve),
        ("POST", BATCHES + "/{batch_id}/cancel", endpoints.cancel),
    )
    for method, path, endpoint in routes:
        add_route(app, method, path, endpoint, errors=_ERRORS, error_schema="ErrorResponse", aliases=())
