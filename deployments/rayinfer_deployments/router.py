"""The Serve deployment that clients talk to: HTTP in front, one dispatcher per model behind it; loads no torch."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from rayinfer.metrics import ServiceMetrics
from rayinfer.models.sources import resolve_model
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import router_limits
from rayinfer.servers.app import build_app
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate, renderer
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.kept_traces import KeptTraces
from rayinfer_deployments.engine_roster import EngineRoster
from rayinfer_deployments.http_door import HttpDoor
from rayinfer_deployments.service_log import log_beside_serve


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterModel:
    """A model as the router needs it."""

    name: str
    source: str  # whatever `resolve_model` understands
    engines: DeploymentHandle


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenAddress:
    """Where a router listens itself instead of behind Serve's proxy."""

    host: str
    port: int


@serve.ingress()
class Router:
    """Serve builds the HTTP application in the replica, after `__init__`: nothing of it is ever pickled."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        models: Sequence[RouterModel],
        *,
        max_body_bytes: int,
        request_timeout_s: float | None,
        trace_requests: bool = True,
        enable_engine_control: bool = False,
        trust_tenant_header: bool = False,
        listen_on: ListenAddress | None = None,
        drain_timeout_s: float = 0.0,
    ) -> None:
        log_beside_serve()
        self._max_body_bytes = max_body_bytes
        self._request_timeout_s = request_timeout_s
        self._enable_engine_control = enable_engine_control
        self._trust_tenant_header = trust_tenant_header
        self._drain_timeout_s = drain_timeout_s
        self._traces = KeptTraces() if trace_requests else None
        self._metrics = ServiceMetrics(CollectorRegistry())
        self._dispatchers: list[Dispatcher] = []
        self._following: list[asyncio.Task[None]] = []
        self._models = {model.name: await self._serve_model(model) for model in models}
        await asyncio.to_thread(renderer)  # the first chat should not wait for it
        self._door: HttpDoor | None = None
        if listen_on is not None:
            self._door = HttpDoor(self._build_app(echoes_request_id=True), listen_on.host, listen_on.port)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Follow other limits at once, with streams open; bad ones raise ConfigError and change nothing."""
        limits = router_limits(user_config)
        for dispatcher in self._dispatchers:
            dispatcher.change_limits(limits)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._build_app(echoes_request_id=False)  # Serve's proxy puts it on every answer

    def _build_app(self, *, echoes_request_id: bool) -> ASGIApp:
        return build_app(
            self._models,
            self._metrics,
            max_body_bytes=self._max_body_bytes,
            request_timeout_s=self._request_timeout_s,
            traces=self._traces,
            echoes_request_id=echoes_request_id,
            enable_engine_control=self._enable_engine_control,
            trusts_tenant_header=self._trust_tenant_header,
        )

    async def __del__(self) -> None:
        """Let go of the engines; Serve has waited for the requests before, but for those that came by the own door."""
        if (door := getattr(self, "_door", None)) is not None:
            await door.close(self._drain_timeout_s)
        for task in self._following:
            task.cancel()
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._dispatchers))

    async def _serve_model(self, model: RouterModel) -> ServedModel:
        folder = await asyncio.to_thread(resolve_model, model.source, progress=False)
        tokenizer = Tokenizer.from_folder(folder)
        dispatcher = Dispatcher(
            model.name,
            tokenizer,
            self._metrics,
            router_id=serve.get_replica_context().replica_tag,
            traces=self._traces,
        )
        following = EngineRoster(dispatcher.engines).follow(model.engines)
        self._following.append(asyncio.get_running_loop().create_task(following))
        self._dispatchers.append(dispatcher)
        return ServedModel(
            name=model.name,
            generator=dispatcher,
            tokenizer=tokenizer,
            chat_template=ChatTemplate.from_folder(folder),
            created=int(time.time()),
            control=dispatcher.control,
        )
