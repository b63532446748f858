"""Paths of tasks that no served model does: they are reserved, and answer 404 with the reason."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import TaskNotServed
from rayinfer.servers.error_formats import choose_error_format, openai_error
from rayinfer.servers.openapi import READ_ERRORS, responses

_TASKS = {
    "embeddings": ("/v1/embeddings", "/embeddings", "/v2/embed"),
    "scores": ("/v1/score", "/score"),
    "reranking": ("/v1/rerank", "/rerank", "/v2/rerank"),
    "classification": ("/v1/classify", "/classify"),
    "pooling": ("/v1/pooling", "/pooling"),
}


def add_unserved_task_routes(app: FastAPI) -> None:
    """Add the paths to an application."""
    for task, paths in _TASKS.items():
        refuse = _refusal(task)
        for path in paths:
            for alias in (path, path + "/"):
                app.add_api_route(
                    alias,
                    refuse,
                    methods=["POST"],
                    response_class=Response,
                    name=task,
                    summary=f"{task.capitalize()}: no served model does this",
                    responses=responses(None, 404, *READ_ERRORS),
                    include_in_schema=alias == path,
                )


def _refusal(task: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        choose_error_format(request.scope, openai_error)
        raise TaskNotServed(f"No model served here does {task}; these generate text.")

    return refuse
