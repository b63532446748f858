"""Static files of the web interface, which come with the package: no build step, nothing from other sites.

The page holds no names and no keys: all data come from the service's own paths, under the caller's key.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

FILES_PATH = "/ui/"
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def web_page(root_path: str) -> Response:
    """Return the page, whose references begin at the path that the application is mounted at."""
    page = _load("index.html").decode().replace("{root}", escape(root_path.rstrip("/"), quote=True))
    headers = {**_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept"}
    return Response(page, headers=headers, media_type="text/html")


def add_web_routes(app: FastAPI) -> None:
    """Add the page's files to an application, and `/docs`, which the page shows too."""

    async def read_file(request: Request) -> Response:
        name = request.path_params["name"]
        kind = _KINDS.get("." + name.rpartition(".")[2])
        if kind is None or name not in _names():
            raise HTTPException(404)
        content = _load(name)
        tag = _tag(name)
        headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    async def docs(request: Request) -> Response:
        return web_page(request.scope.get("root_path", ""))

    app.router.add_route(FILES_PATH + "{name}", read_file, methods=["GET", "HEAD"], include_in_schema=False)
    app.router.add_route("/docs", docs, methods=["GET", "HEAD"], include_in_schema=False)


@cache
def _names() -> frozenset[str]:
    return frozenset(entry.name for entry in files(__package__).joinpath("static").iterdir())


@cache
def _load(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def _tag(name: str) -> str:
    return f'"{sha256(_load(name)).hexdigest()[:16]}"'
