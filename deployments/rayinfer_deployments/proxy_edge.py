"""What Serve's own HTTP proxies run before anything of Serve's: the bounds that our own port has."""

from starlette.middleware import Middleware

from rayinfer.servers.request_bounds import MAX_BODY_BYTES, BoundedRequests, RequestBounds


def proxy_middlewares() -> list[Middleware]:
    """Name the middlewares; Serve calls this in each proxy, as RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH says.

    Applications have limits of their own for bodies, which are lower.
    """
    return [Middleware(BoundedRequests, bounds=RequestBounds(max_body_bytes=MAX_BODY_BYTES))]
