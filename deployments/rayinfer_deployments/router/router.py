"""The Serve deployment that clients talk to: HTTP in front, one dispatcher per model behind it; loads no torch."""

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.types import ASGIApp

from rayinfer.access.access_control import AccessControl
from rayinfer.errors import ConfigError
from rayinfer.images.fetching.media_fetcher import MediaFetcher
from rayinfer.metrics.families import MetricsSnapshot
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cache_settings import NO_PREDICTION_CACHE, PredictionCacheSettings
from rayinfer.prediction_cache.router_cache import RouterCache
from rayinfer.protocols import ControlAction, ServiceStatus
from rayinfer.routing.canary.releases import CanaryState
from rayinfer.routing.limits import RouterLimits, router_limits, with_tenant_weights
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.access.web_origins import OriginPolicy
from rayinfer.servers.app import build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import example_models
from rayinfer.servers.kserve.grpc.call_access import CallAccess
from rayinfer.servers.kserve.grpc.calls import Calls
from rayinfer.servers.kserve.grpc.methods import InferenceMethods
from rayinfer.servers.kserve.grpc.server import GrpcLimits, GrpcServer
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.openai.responses.store import ResponseStore
from rayinfer.servers.operators.operations import Operations, ServiceOperator
from rayinfer.servers.prediction.body_limits import BodyLimits
from rayinfer.servers.request_limits import DEFAULT_REQUEST_LIMITS, RequestLimits
from rayinfer.servers.served_model import base_models
from rayinfer.tokenization.chat_template import renderer
from rayinfer.traces.generation_span import SpanRecorder, otlp_recorder
from rayinfer.traces.trace_store import TraceStore
from rayinfer_deployments.cluster.service_operator import CommandOperator, SocketOperator
from rayinfer_deployments.router.access_owner_actor import RemoteOwner
from rayinfer_deployments.router.access_settings import AccessSettings
from rayinfer_deployments.router.adapters.router_adapters import RouterAdapters
from rayinfer_deployments.router.batch_owner_actor import BatchSettings
from rayinfer_deployments.router.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from rayinfer_deployments.router.grpc_ingress import GrpcIngress
from rayinfer_deployments.router.grpc_port import bind_grpc_server
from rayinfer_deployments.router.http_server import HttpServer
from rayinfer_deployments.router.open_responses import OpenResponses
from rayinfer_deployments.router.routed_models import RoutedModels, RouterModel
from rayinfer_deployments.router.router_batches import RouterBatches, open_response_store
from rayinfer_deployments.router.sibling_metrics import SiblingMetrics
from rayinfer_deployments.router.tls import ReloadedTls

OPEN_ACCESS = AccessSettings()
KEYS_S = 10.0  # for their owner's start
SETTLE_S = 0.5  # for the last words of responses that are ended
SWITCH_INTERVAL_S = 0.001  # how long the event loop waits for a thread that prepares a request; Python's default: 5 ms

# Young collections before a full one, instead of Python's 10. Requests of a thousand prompts brought several full ones
# a second, each of 30 to 100 ms. Requests and bodies are freed without: what they find is some hundred small objects.
FULL_COLLECTION_INTERVAL = 1000

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterReport:
    """Limits of a router and state of its models at one moment."""

    router: str  # its replica's name
    limits: RouterLimits
    models: dict[str, ServiceStatus]
    canaries: list[CanaryState] = field(default_factory=list)
    key_error: str = ""  # what is wrong with the key file, while the last keys apply


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenAddress:
    """Address of a router's own HTTP server, in place of Serve's proxy, or of its gRPC server."""

    host: str
    port: int


@serve.ingress()
class Router(GrpcIngress):
    """Ingress deployment; Serve builds its HTTP application in the replica, after `__init__`: it is never pickled."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        models: Sequence[RouterModel],
        *,
        max_body_bytes: int,
        request_timeout_s: float | None,
        trace_requests: bool = True,
        otlp_traces_endpoint: str | None = None,
        enable_engine_control: bool = False,
        trust_tenant_header: bool = False,
        request_limits: RequestLimits = DEFAULT_REQUEST_LIMITS,
        trust_request_chat_template: bool = False,
        with_examples: bool = False,
        listen_on: ListenAddress | None = None,
        grpc_on: ListenAddress | None = None,
        connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        drain_timeout_s: float = 0.0,
        access: AccessSettings = OPEN_ACCESS,
        prediction_cache: PredictionCacheSettings = NO_PREDICTION_CACHE,
        batches: BatchSettings | None = None,
    ) -> None:
        self._http_server: HttpServer | None = None  # before anything fails: Serve calls __del__ then, too
        self._grpc_server: GrpcServer | None = None
        self._access: AccessControl | None = None
        self._access_log: AccessLog | None = None
        self._spans: SpanRecorder | None = None
        self._traces = TraceStore(keeps_prompts=access.trace_prompts) if trace_requests else None
        self._router_id = serve.get_replica_context().replica_tag
        self._metrics = ServiceMetrics(self._router_id)
        predictions = RouterCache(prediction_cache, self._metrics) if prediction_cache.max_bytes else None
        self._models = RoutedModels(self._router_id, self._metrics, self._traces, predictions)
        self._open_responses = OpenResponses()
        self._following: list[asyncio.Task[None]] = []
        log_to_serve()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._max_body_bytes = max_body_bytes
        self._body_limits = BodyLimits(max_body_bytes, self._models.served, request_limits)
        self._request_timeout_s = request_timeout_s
        self._enable_engine_control = enable_engine_control
        self._trust_tenant_header = trust_tenant_header
        self._request_limits = request_limits
        self._trust_request_chat_template = trust_request_chat_template
        self._drain_timeout_s = drain_timeout_s
        self._limits = RouterLimits()  # until Serve brings those that were asked for
        self._sibling_metrics = SiblingMetrics(self._router_id)
        if otlp_traces_endpoint is not None:
            self._spans = await asyncio.to_thread(otlp_recorder, otlp_traces_endpoint, self._router_id)
        self._access_settings = access
        self._access_log = None if access.log is None else AccessLog(Path(access.log))
        self._access = None if access.key_file is None else self._control_access(access.key_file)
        await self._models.add_all(models)
        self._adapters = RouterAdapters(self._models)
        self._batches, self._response_store = self._build_stored(batches)
        self._running_batches: asyncio.Task[None] | None = None
        self._kserve = self._build_kserve(with_examples=with_examples)
        self._call_access = CallAccess(self._access, self._access_log, trust_tenant_header)
        calls = Calls(self._call_access, self._metrics)
        self.grpc_methods = InferenceMethods(self._kserve, calls, body_limits=self._body_limits)
        await self._wait_until_ready()
        await self._open_ports(listen_on, grpc_on, connection_limits)

    async def _wait_until_ready(self) -> None:
        """Wait for what requests need, and begin with what runs beside them."""
        await asyncio.to_thread(renderer)  # the first chat should not wait for it
        await asyncio.gather(self._wait_for_keys(), self._models.wait_for_engines(), self._adapters.start())
        collect_garbage_rarely()
        if self._batches is not None:
            runner = self._batches.runner.run(self._build_app(echoes_request_id=True))
            self._running_batches = asyncio.create_task(runner)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Apply other limits at once, with streams open; invalid ones are logged as an error and change nothing.

        Serve ends replicas that refuse theirs, and with them all streams: a typing error is not worth that.
        """
        try:
            self._limits = router_limits(user_config)
        except ConfigError as error:
            logger.error("invalid limits, the old ones are kept: %s", error)
            return
        self._apply_limits()

    async def report(self) -> RouterReport:
        """Return the state of this router and of its engines, for operators."""
        return RouterReport(
            router=self._router_id,
            limits=self._limits,
            models={name: model.generator.status() for name, model in base_models(self._models.served).items()},
            canaries=self._models.canaries.states(),
            key_error="" if self._access is None else self._access.key_error,
        )

    async def metrics_snapshot(self) -> MetricsSnapshot:
        """Return the metrics of this router, for others that are scraped."""
        return self._metrics.snapshot()

    async def run_on_adapters(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """List, load or unload adapters for an operator; raises RayinferError."""
        return await self._adapters.run(operation, arguments)

    async def refresh_adapters(self) -> None:
        """Read the table of adapters, which another router has changed."""
        await self._adapters.registry.refresh()

    async def control_engines(self, action: ControlAction, model: str | None) -> None:
        """Run an action on the engines of one model or of all; an error does not stop the others.

        Raises UnknownModel, NotReady or WrongEngineState, the first of them at the end.
        """
        await self._models.control(action, model)

    async def remove_engine(self, engine: str) -> bool:
        """Migrate an engine's streams and send it no more requests; returns whether it was known."""
        return self._models.remove_engine(engine)

    async def stop_admitting(self) -> int:
        """Refuse new requests from now on, as the service shuts down; returns how many are open.

        With none, it does what `end_requests` does: a service without requests ends after one call.
        """
        if self._running_batches is not None:
            self._running_batches.cancel()  # batches go on at the next start
        num_open = self._models.stop_admitting()
        if not num_open:
            await self.end_requests()
        return num_open

    async def end_requests(self) -> None:
        """End open requests with an error in their protocols' forms, and write usage and logs; the ports stay open."""
        await self._models.close()
        calls_end = asyncio.sleep(0) if self._grpc_server is None else self._grpc_server.close(SETTLE_S)
        await asyncio.gather(self._open_responses.wait_closed(SETTLE_S), calls_end)
        await self._write_records()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._build_app(echoes_request_id=False)  # Serve's proxy puts it on every answer

    def _build_app(self, *, echoes_request_id: bool) -> ASGIApp:
        app = build_app(
            self._models.served,
            self._metrics,
            max_body_bytes=self._max_body_bytes,
            request_timeout_s=self._request_timeout_s,
            traces=self._traces,
            echoes_request_id=echoes_request_id,
            enable_engine_control=self._enable_engine_control,
            trusts_tenant_header=self._trust_tenant_header,
            other_metrics=self._sibling_metrics.latest,
            request_limits=self._request_limits,
            trusts_request_chat_template=self._trust_request_chat_template,
            access=self._access,
            access_log=self._access_log,
            opens_load=self._access_settings.opens_load,
            price_per_engine_hour=self._access_settings.price_per_engine_hour,
            origins=OriginPolicy(
                cors_origins=self._access_settings.cors_origins,
                allowed_hosts=self._access_settings.allowed_hosts,
                is_local=self._access_settings.is_local,
            ),
            kserve=self._kserve,
            batches=None if self._batches is None else self._batches.services,
            response_store=self._response_store,
            operations=Operations(
                operator=self._operator() if self._enable_engine_control else None,
                scaling_decisions=self._models.scaling_decisions,
            ),
            adapters=self._adapters.registry,
        )
        app.add_middleware(self._open_responses.counted)
        return app

    def _operator(self) -> ServiceOperator:
        """Return what runs operators' commands: the process of `rayinfer serve`, or the command itself."""
        if (path := self._access_settings.control_socket) is not None:
            return SocketOperator(Path(path))
        return CommandOperator(ray.get_runtime_context().gcs_address, serve.get_replica_context().app_name)

    def _build_kserve(self, *, with_examples: bool) -> InferenceService:
        served = self._models.served
        generation = GenerationService(
            served,
            self._request_timeout_s,
            self._traces,
            self._request_limits,
            self._access,
            self._spans,
            MediaFetcher.of(self._access_settings.media),
        )
        return InferenceService(generation, ModelRepository(served, example_models() if with_examples else ()))

    def _build_stored(self, settings: BatchSettings | None) -> tuple[RouterBatches | None, ResponseStore]:
        """Make the clients of what is kept between requests: batches, and responses."""
        if settings is None:
            return None, open_response_store(None)
        application = serve.get_replica_context().app_name
        batches = RouterBatches(
            self._router_id, application, settings, self._models.served, self._access, self._metrics.batch_counts()
        )
        return batches, open_response_store(settings.folder)

    async def _wait_for_keys(self) -> None:
        """Wait until the keys are known, for a limited time: requests are refused until then."""
        if self._access is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._access.is_loaded.wait(), KEYS_S)

    async def _open_ports(
        self, listen_on: ListenAddress | None, grpc_on: ListenAddress | None, limits: ConnectionLimits
    ) -> None:
        if listen_on is not None:
            self._listen(listen_on, limits)
        if grpc_on is not None:
            self._grpc_server = self._build_grpc_server(grpc_on, limits)
            await self._grpc_server.start()

    def _listen(self, address: ListenAddress, limits: ConnectionLimits) -> None:
        """Open the router's own port."""
        settings = self._access_settings.tls
        tls = None if settings is None else ReloadedTls(settings)
        app = self._build_app(echoes_request_id=True)
        self._http_server = HttpServer(app, address.host, address.port, limits=limits, tls=tls)
        if tls is not None:
            self._follow(tls.follow())

    def _build_grpc_server(self, address: ListenAddress, limits: ConnectionLimits) -> GrpcServer:
        return bind_grpc_server(
            self._kserve,
            self._metrics,
            address.host,
            address.port,
            limits=GrpcLimits(max_message_bytes=self._body_limits.largest, max_connections=limits.max_connections),
            access=self._call_access,
            tls=self._access_settings.tls,
        )

    async def __del__(self) -> None:
        """Disconnect from the engines; Serve has drained requests, except those on the router's own ports."""
        servers = [server for server in (self._http_server, self._grpc_server) if server is not None]
        closing = asyncio.gather(*(server.close(self._drain_timeout_s + SETTLE_S) for server in servers))
        await asyncio.wait([closing], timeout=self._drain_timeout_s)
        await self._models.close()  # requests that are still open get an error
        await closing
        await self._write_records()
        for task in [*self._following, *([self._running_batches] if self._running_batches else [])]:
            task.cancel()

    async def _write_records(self) -> None:
        """Write the rest of the usage, of the access log and of spans."""
        if self._access is not None:
            with contextlib.suppress(Exception):
                await self._access.synchronize()
        log, self._access_log = self._access_log, None
        if log is not None:
            await asyncio.to_thread(log.close)
        spans, self._spans = self._spans, None
        if spans is not None:
            await asyncio.to_thread(spans.close)

    def _control_access(self, key_file: str) -> AccessControl:
        application = serve.get_replica_context().app_name
        access = AccessControl(
            self._router_id,
            RemoteOwner(application, key_file),
            engine_load=self._models.engine_load,
            on_keys=lambda _: self._apply_limits(),
            on_key_error=lambda error: self._metrics.set_key_file_valid(not error),
        )
        self._metrics.set_key_file_valid(True)
        self._follow(access.follow())
        return access

    def _apply_limits(self) -> None:
        """Apply the limits, with the tenants of keys among them, to all models."""
        keys = None if self._access is None else self._access.authenticator.keys
        limits = self._limits if keys is None else with_tenant_weights(self._limits, keys.tenant_weights())
        self._models.change_limits(limits)

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the router ends."""
        self._following.append(asyncio.get_running_loop().create_task(work))


def collect_garbage_rarely() -> None:
    """Exclude all that is loaded from garbage collection, and have the collector walk the rest rarely as a whole."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTION_INTERVAL)


def log_to_serve() -> None:
    """Pass the records of the library's loggers on to Serve's.

    A replica of Serve turns whatever comes through `sys.stderr` into records of no importance, which the service does
    not keep: Python's default for loggers that are not set up would lose every error.
    """
    logging.getLogger("rayinfer").parent = logging.getLogger("ray.serve")
