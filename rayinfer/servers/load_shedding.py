"""Turns new work away before it costs anything, while no model would take it; as plain ASGI."""

from collections.abc import Collection, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from rayinfer.errors import Unavailable
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response, refusal_reason
from rayinfer.servers.served_model import ServedModel


class LoadShedding:
    """ASGI middleware that answers requests for `paths` itself while every model's queue is full.

    Nothing of such a request is read, so that a burst of them is answered sooner than it comes and delays no other
    tokens; other faults of it are not reported. While one model's queue is not full, its dispatcher decides.
    """

    def __init__(
        self, app: ASGIApp, models: Mapping[str, ServedModel], metrics: ServiceMetrics, paths: Collection[str]
    ) -> None:
        self._app = app
        self._models = models
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            overload = self._overload()
            if overload is not None:
                self._metrics.request_refused(refusal_reason(overload))
                await error_response(overload, error_format_of(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _overload(self) -> Unavailable | None:
        overload = None
        for model in self._models.values():
            overload = model.generator.overload()
            if overload is None:
                return None
        return overload
