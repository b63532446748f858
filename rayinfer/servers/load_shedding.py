"""Turns new work away before it costs anything, while no model would take it; as plain ASGI."""

import re
from collections.abc import Collection, Iterable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from rayinfer.errors import Unavailable
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.access.open_paths import route_path
from rayinfer.servers.caller import ANYONE
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response, refusal_reason
from rayinfer.servers.served_model import ServedModel

# Paths of several protocols that name the model that is to generate or predict.
_MODEL_PATH = re.compile(
    r"/v2/models/(?P<kserve>.+?)(?:/versions/[^/]+)?/(?:infer|generate|generate_stream)"
    r"|/models/(?P<other>.+)/(?:generate|generate_stream|invocations|api|embed|embed_all|predict|similarity|rerank)"
)


class LoadShedding:
    """ASGI middleware that answers requests for `paths` itself while every model's queue is full.

    Where the path names a model, that model's queue decides. Nothing of such a request is read, so that a burst of
    them is answered sooner than it comes and delays no other tokens; other faults of it are not reported. While one
    model's queue is not full, its dispatcher decides.
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
        if scope["type"] == "http" and scope["method"] in ("POST", "PUT"):
            overload = _overload(self._models_of(scope))
            if overload is not None:
                self._metrics.request_refused(refusal_reason(overload))
                await error_response(overload, error_format_of(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _models_of(self, scope: Scope) -> Iterable[ServedModel]:
        """Return the models that may generate for a request, as far as its path says: none where it does not."""
        path = route_path(scope)
        if path in self._paths:
            return self._models.values()
        named = _MODEL_PATH.fullmatch(path)
        model = None if named is None else self._models.get(named["kserve"] or named["other"])
        if model is None or not scope.get("state", {}).get("caller", ANYONE).may_use(model.name):
            return []  # the endpoint says that there is no such model
        return [model]


def _overload(models: Iterable[ServedModel]) -> Unavailable | None:
    overload = None
    for model in models:
        if model.adapter is not None:  # its queue is the model's
            continue
        overload = model.generator.overload()
        if overload is None:
            return None
    return overload
