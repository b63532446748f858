"""The models behind a router: a dispatcher for each, which follows the engines that Serve reports."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray.serve.handle import DeploymentHandle
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from rayinfer.access.generation_usage import EngineLoad, engine_load
from rayinfer.images.prompts import ImagePrompts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.models.predictor_kind import PredictorKind, predictor_kind
from rayinfer.prediction_cache.cached_predictor import CachedPredictor
from rayinfer.prediction_cache.router_cache import RouterCache
from rayinfer.protocols import ControlAction, TextGenerator
from rayinfer.routing.canary.releases import CanaryReleases
from rayinfer.routing.dispatch import ENGINE_WAIT_S, Dispatcher
from rayinfer.routing.first_tokens import FirstTokens
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer.servers.adapters.adapter_folders import AdapterFolders
from rayinfer.servers.served_model import ServedModel, base_models, find_model
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.trace_store import TraceStore
from rayinfer_deployments.discovery.load_reports import report_to_replicas
from rayinfer_deployments.discovery.scale_from_zero import RayTable, write_backlog
from rayinfer_deployments.discovery.scaling_decisions import ScalingDecisions
from rayinfer_deployments.model_files.nodes_with_model import resolve_on_cluster
from rayinfer_deployments.router.engine_reconciler import EngineReconciler

CATCH_UP_S = 3.0  # at a service's start no engine is there yet, and clients should get that error
DECISIONS_S = 2.0  # between two readings of the autoscaler's decisions, while a live view is open
FIRST_ENGINE_S = 60.0  # where there may be none: a router that has seen none does not know what the model is


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterScaling:
    """Router settings of a model whose number of engines follows the load."""

    ttft_objective_s: float
    cold_start_timeout_s: float  # how long requests wait where there is no engine
    max_replicas: int = 1  # that the load may bring


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterModel:
    """A model that the router serves: its name, tokenizer source and engine deployment."""

    name: str
    source: str  # whatever `resolve_model` understands
    engines: DeploymentHandle
    scaling: RouterScaling | None = None
    tool_format: str | None = None  # None for what the chat template shows
    roles: RoleSettings | None = None  # None where all engines have both
    adapters: AdapterFolders | None = None  # None where it takes none


class RoutedModels:
    """Models with their dispatchers; `served` has those that were added, by their names."""

    def __init__(
        self,
        router_id: str,
        metrics: ServiceMetrics,
        traces: TraceStore | None,
        predictions: RouterCache | None = None,
    ) -> None:
        self.served: dict[str, ServedModel] = {}
        self._router_id = router_id
        self._metrics = metrics
        self._traces = traces
        self._predictions = predictions
        self.canaries = CanaryReleases(metrics)
        self.adapted: list[tuple[ServedModel, AdapterFolders]] = []  # models that take adapters
        self._dispatchers: list[Dispatcher] = []
        self._reconcilers: list[EngineReconciler] = []
        self._wait_s: list[float] = []  # of each, for its engines
        self._autoscaled: dict[str, DeploymentHandle] = {}  # engines of models whose number follows the load
        self._decisions: dict[str, list[dict[str, Any]]] = {}
        self._decisions_read_s = float("-inf")
        self._following: list[asyncio.Task[None]] = []

    async def add_all(self, models: Sequence[RouterModel]) -> None:
        """Add models, one after another."""
        for model in models:
            await self.add(model)

    async def add(self, model: RouterModel) -> None:
        """Load a model's tokenizer and follow its engines."""
        folder = await asyncio.to_thread(resolve_on_cluster, model.source, with_weights=False)
        kind = predictor_kind(folder)
        tokenizer, chat_template = read_text_files(folder, kind)
        scaling = model.scaling
        first_tokens = None if scaling is None else FirstTokens(scaling.ttft_objective_s)
        dispatcher = Dispatcher(
            model.name,
            tokenizer,
            self._metrics,
            router_id=self._router_id,
            traces=self._traces,
            engine_wait_s=ENGINE_WAIT_S if scaling is None else scaling.cold_start_timeout_s,
            first_tokens=first_tokens,
            max_engines=1 if scaling is None else scaling.max_replicas,
            roles=model.roles,
        )
        dispatcher.engines.find_missing_files = partial(find_missing_files, folder)
        self._follow_engines(model, dispatcher, first_tokens)
        self._dispatchers.append(dispatcher)
        served = ServedModel(
            name=model.name,
            generator=self._generator(model.name, dispatcher, kind),
            tokenizer=tokenizer,
            chat_template=chat_template,
            created=int(time.time()),
            engines=dispatcher.engine_set_control,
            tool_format=model.tool_format,
            image_prompts=ImagePrompts.from_folder(folder) if kind is None else None,
        )
        if kind is None:
            if model.adapters is not None:  # no canary answers their requests
                self.adapted.append((served, model.adapters))
            served = replace(served, generator=self.canaries.add(model.name, served.generator, tokenizer))
            self.follow(self.canaries.apply())
        self.served[model.name] = served

    async def wait_for_engines(self) -> None:
        """Wait until the engines of all models are known, for a limited time.

        A router that replaces another, or joins others, has to answer as soon as clients reach it.
        """
        known = zip(self._reconcilers, self._wait_s, strict=True)
        await asyncio.gather(*(reconciler.wait_complete(wait_s) for reconciler, wait_s in known))

    async def scaling_decisions(self, model: str) -> Sequence[Mapping[str, Any]]:
        """Return the latest changes of a model's number of engines by its load, the latest last."""
        engines = self._autoscaled.get(model)
        if engines is None:
            return ()
        if time.monotonic() - self._decisions_read_s > DECISIONS_S:
            self._decisions_read_s = time.monotonic()
            table = ScalingDecisions(RayTable())
            for name, each in self._autoscaled.items():
                read = await asyncio.to_thread(table.read, each.app_name, each.deployment_name)
                self._decisions[name] = [asdict(decision) for decision in read]
        return self._decisions.get(model, ())

    def change_limits(self, limits: RouterLimits) -> None:
        """Apply other limits to all models."""
        for dispatcher in self._dispatchers:
            dispatcher.change_limits(limits)
        self.follow(self.canaries.apply(limits.canaries))

    async def control(self, action: ControlAction, model: str | None) -> None:
        """Run an action on the engines of one model or of all; an error does not stop the others.

        Raises UnknownModel, NotReady or WrongEngineState, the first of them at the end.
        """
        chosen = base_models(self.served).values() if model is None else [find_model(self.served, model)]
        engines = [served.engines for served in chosen if served.engines is not None]
        outcomes = await asyncio.gather(*(each.control(action) for each in engines), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def engine_load(self, model: str) -> EngineLoad:
        """Return the load of a model's engines; none for an adapter that was unloaded while requests of it run."""
        served = self.served.get(model)
        return EngineLoad(1, 0) if served is None else engine_load(served.generator)

    def remove_engine(self, engine: str) -> bool:
        """Migrate an engine's streams and send it no more requests; returns whether it was known."""
        return any(reconciler.remove(engine) for reconciler in self._reconcilers)

    def stop_admitting(self) -> int:
        """Refuse new requests from now on; returns how many are open."""
        for dispatcher in self._dispatchers:
            dispatcher.stop_admitting()
        return sum(dispatcher.num_open for dispatcher in self._dispatchers)

    async def close(self) -> None:
        """End all open requests with ShuttingDown, and disconnect from the engines."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._dispatchers))
        if self._predictions is not None:
            await self._predictions.close()

    def _generator(self, name: str, dispatcher: Dispatcher, kind: PredictorKind | None) -> TextGenerator:
        """Return what answers a model's requests: with the cache in front, where it does not generate."""
        if kind is None or self._predictions is None:
            return dispatcher
        return CachedPredictor(name, dispatcher, self._predictions.shared, self._metrics, self._traces)

    def _follow_engines(self, model: RouterModel, dispatcher: Dispatcher, first_tokens: FirstTokens | None) -> None:
        reconciler = EngineReconciler(dispatcher.engines)
        self._reconcilers.append(reconciler)
        self._wait_s.append(CATCH_UP_S if first_tokens is None else FIRST_ENGINE_S)
        self.follow(reconciler.follow(model.engines))
        if first_tokens is None:
            return
        self._autoscaled[model.name] = model.engines
        self.follow(report_to_replicas(model.engines, self._router_id, first_tokens.counts))
        self.follow(
            write_backlog(
                RayTable(),
                model.engines.app_name,
                model.engines.deployment_name,
                self._router_id,
                lambda: dispatcher.needs_engine,
                first_tokens.counts,
            )
        )

    def follow(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, until the router ends at the latest."""
        self._following = [task for task in self._following if not task.done()]
        self._following.append(asyncio.get_running_loop().create_task(work))


def find_missing_files(folder: Path) -> str:
    """Return what a new engine would not find of a model, for clients and operators; "" where its folder is there."""
    return "" if (folder / "config.json").is_file() else f"its folder {folder.name!r} has been deleted"


def read_text_files(folder: Path, kind: PredictorKind | None) -> tuple[Tokenizer, ChatTemplate]:
    """Read a model's tokenizer and chat template: tokens of texts alone, and no template where none is generated."""
    tokenizer = Tokenizer(Backend(BPE())) if kind in ("image", "tensors") else Tokenizer.from_folder(folder)
    return tokenizer, ChatTemplate.from_folder(folder) if kind is None else ChatTemplate({}, {})
