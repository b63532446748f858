"""Middlewares of Serve's HTTP proxies: the request bounds of the router's own port, and answers for lost routers."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayinfer.errors import NotReady
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response
from rayinfer.servers.request_bounds import MAX_BODY_BYTES, BoundedRequests, RequestBounds


def proxy_middlewares() -> list[Middleware]:
    """Return the middlewares; Serve calls this in each proxy, through RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH.

    Applications have limits of their own for bodies, which are lower.
    """
    bounds = RequestBounds(max_body_bytes=MAX_BODY_BYTES)
    return [Middleware(BoundedRequests, bounds=bounds), Middleware(AnsweredRequests)]


class AnsweredRequests:
    """ASGI middleware that asks a client to come back where the router died before its answer began.

    Serve's proxy sends nothing then, which clients would get as a 500.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer it with 503 if nothing else has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def noted_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        await self._app(scope, receive, noted_send)
        if not has_started:
            lost = NotReady("The router that had this request is gone.")
            await error_response(lost, error_format_of(scope))(scope, receive, send)
