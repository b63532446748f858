"""Middlewares of Serve's HTTP proxies: the request bounds of the router's own port."""

from starlette.middleware import Middleware

from rayinfer.servers.request_bounds import MAX_BODY_BYTES, BoundedRequests, RequestBounds


def proxy_middlewares() -> list[Middleware]:
    """Return the middlewares; Serve calls this in each proxy, through RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH.

    Applications have limits of their own for bodies, which are lower.
    """
    return [Middleware(BoundedRequests, bounds=RequestBounds(max_body_bytes=MAX_BODY_BYTES))]
