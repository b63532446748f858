"""Paths that need no key, and the scopes of the others."""

from collections.abc import Mapping
from typing import Any

from rayinfer.access.api_key import Scope

LOAD_PATH = "/metrics/load"  # open where the service says so, for endpoint pickers, which send no key
OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})
OPEN_PREFIXES = ("/v2/health/",)
OPEN_TO_READ = frozenset({"/", "/docs"})  # the page, which holds no names, and TGI's health; POST generates
OPEN_FILES = "/ui/"  # of the page
READING_METHODS = ("GET", "HEAD")
SCOPES = {
    "/metrics": Scope.METRICS,
    LOAD_PATH: Scope.METRICS,
    "/pause": Scope.OPERATE,
    "/resume": Scope.OPERATE,
    "/sleep": Scope.OPERATE,
    "/wake_up": Scope.OPERATE,
    "/is_sleeping": Scope.OPERATE,
    "/is_paused": Scope.OPERATE,
    "/v1/load_lora_adapter": Scope.OPERATE,
    "/v1/unload_lora_adapter": Scope.OPERATE,
    "/v1/lora_adapters": Scope.OPERATE,
}
OPERATE_PREFIXES = ("/v2/repository/models/", "/operations/")  # loads and unloads; drain, scale, reload


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path by which Starlette finds a route: without the prefix of an application behind Serve's proxies."""
    path: str = scope.get("path", "")
    prefix: str = scope.get("root_path", "")
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


def is_open(method: str, path: str, *, opens_load: bool = False) -> bool:
    """Return whether a request for a path needs no key.

    Without one, answers name no models. No OPTIONS is open: those that CORS allows are answered before.
    """
    if method in READING_METHODS and (path in OPEN_TO_READ or path.startswith(OPEN_FILES)):
        return True
    if opens_load and method in READING_METHODS and _plain(path) == LOAD_PATH:
        return True
    return method != "OPTIONS" and (_plain(path) in OPEN_PATHS or path.startswith(OPEN_PREFIXES))


def scope_of(path: str) -> Scope:
    """Return the scope that a path needs; whatever is not listed generates text, or helps to."""
    return Scope.OPERATE if path.startswith(OPERATE_PREFIXES) else SCOPES.get(_plain(path), Scope.INFER)


def _plain(path: str) -> str:
    return path[:-1] if len(path) > 1 and path.endswith("/") else path
