"""Operators' commands for a running service: status, engine control, drain, reload, scale and limits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ray import serve
from ray.serve.schema import ApplicationStatus

from rayinfer.errors import RayinferError
from rayinfer.routing.limits import RouterLimits, router_limits
from rayinfer_deployments.app_args import LLMAppArgs, ModelArgs
from rayinfer_deployments.applications import ROUTER, build_llm_app, engine_deployment_name
from rayinfer_deployments.operations.adapter_operations import AdapterOperations
from rayinfer_deployments.operations.application_replicas import ApplicationReplicas
from rayinfer_deployments.operations.control_socket import Operation
from rayinfer_deployments.operations.node_drain import NodeDrain
from rayinfer_deployments.operations.placement_watcher import InsufficientResources, PlacementWatcher
from rayinfer_deployments.operations.replica_calls import (
    control_action,
    engines_in,
    find_engine,
    have_weights,
    in_plain_types,
    within,
)
from rayinfer_deployments.operations.replica_counts import is_allowed_count, num_wanted, scaled, with_initial_replicas
from rayinfer_deployments.operations.service_shutdown import ServiceShutdown
from rayinfer_deployments.operations.service_startup import failure_of, redeploy
from rayinfer_deployments.operations.weights_check import check_weights_fit

POLL_S = 0.1
CONTROL_S = 120.0  # of engines that give their memory back, or take it
APPLY_S = 30.0  # until every router has other limits
FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
LEAVE_S = 20.0  # until an engine knows that it is to leave
REPLACE_S = 600.0  # until an engine is loaded in another's place


class ServiceOperations:
    """Commands on one application; one change at a time.

    `deploy` hands Serve other settings; by default as the process does that has deployed the application. `original`
    are the models to which `scale auto` goes back.
    """

    leave_s = LEAVE_S

    def __init__(
        self,
        application: str,
        args: LLMAppArgs,
        *,
        route_prefix: str = "/",
        missing_settings: Sequence[str] = (),
        deploy: Callable[[LLMAppArgs], None] | None = None,
        original: Sequence[ModelArgs] | None = None,
        placement_watcher: Callable[[str, Sequence[str]], PlacementWatcher] = PlacementWatcher,
    ) -> None:
        self._application = application
        self._redeploy = deploy or (lambda wanted: redeploy(build_llm_app(wanted), application, route_prefix))
        self._args = args
        self._original = args.models if original is None else original
        self._missing_settings = list(missing_settings)
        self._placement_watcher = placement_watcher
        self._changing = asyncio.Lock()
        self._replicas = ApplicationReplicas(application)

    def by_name(self) -> dict[str, Operation]:
        """Return the commands by their names on the control socket."""
        return {
            "status": self.status,
            "control": self.control,
            "drain": self.drain,
            "reload": self.reload,
            "scale": self.scale,
            "limits": self.limits,
            "change_limits": self.change_limits,
            **AdapterOperations(self._replicas).by_name(),
            **ServiceShutdown(self._replicas).by_name(),
            **NodeDrain(self._application).by_name(),
        }

    async def status(self) -> dict[str, Any]:
        """Return the state of Serve's deployments, the routers and the engines."""
        applications = await asyncio.to_thread(lambda: serve.status().applications)
        overview = applications.get(self._application)
        deployments = [] if overview is None else overview.deployments.items()
        return {
            "state": "NOT_STARTED" if overview is None else overview.status.value,
            "reason": failure_of(overview) if overview is not None and overview.status in FAILED else "",
            "deployments": [
                {
                    "name": name,
                    "state": deployment.status.value,
                    "reason": " ".join(deployment.message.split())[:500],
                    "wanted": num_wanted(self._args, name),
                    "replicas": {str(state): count for state, count in deployment.replica_states.items()},
                }
                for name, deployment in deployments
            ],
            "routers": [in_plain_types(report) for report in await self._replicas.reports()],
            "missing_settings": self._missing_settings,
        }

    async def control(self, action: str, model: str | None = None, level: int = 1) -> list[str]:
        """Pause, resume, put to sleep or wake the engines of one model or of all; returns the names of the models."""
        response = self._replicas.handle(ROUTER).control_engines.remote(control_action(action, level), model)
        await within(CONTROL_S, response, "the engines")
        return [model] if model is not None else [known.served_name for known in self._args.models]

    async def limits(self) -> dict[str, Any]:
        """Return the routers' limits."""
        return self._args.limits.model_dump(mode="json")

    async def change_limits(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Apply other limits in all routers, later ones too; raises ConfigError for invalid limits."""
        async with self._changing:
            wanted = router_limits(limits)
            await self._deploy(self._args.model_copy(update={"limits": wanted}))
            await self._until(lambda: self._all_follow(wanted), APPLY_S, "the routers have not taken the limits")
        return wanted.model_dump(mode="json")

    async def drain(self, engine: str | None = None, shrink: bool = False) -> dict[str, Any]:
        """Replace one engine, or with None all of them; with `shrink` its model has one engine fewer afterwards.

        Returns which engines left and which there are now. Streams migrate to other engines.
        """
        async with self._changing:
            before = await self._replicas.engines()
            if engine is None:
                leaving = set(before)
                await self._replace_engines_of(range(len(self._args.models)))
            else:
                engine = find_engine(engine, before)
                leaving = {engine}
                index = self._index_of(before[engine])
                model, served = self._args.models[index], list(before.values())
                num_engines = model.num_replicas if model.autoscaling is None else served.count(before[engine])
                if num_engines == 1 and not shrink:
                    await self._replace_engines_of([index])
                else:
                    await self._take_out(engine, index, shrink)
            await self._until(lambda: self._are_replaced(leaving), REPLACE_S, "the engines are not replaced yet")
            return {"left": sorted(leaving), "engines": sorted(await self._replicas.engines())}

    async def reload(self, source: str, model: str | None = None) -> dict[str, Any]:
        """Load other weights into a model, engine by engine; its streams migrate to engines that have them.

        `source` is a checkpoint as `resolve_model` understands it, with the same tokenizer and context length.
        Raises RayinferError when it does not fit or cannot be loaded; then the engines have the weights they had.
        """
        async with self._changing:
            index = self._index_of(model)
            before = self._args.models[index]
            await asyncio.to_thread(check_weights_fit, before, source)
            leaving = {
                engine for engine, name in (await self._replicas.engines()).items() if name == before.served_name
            }
            version = before.weights_version + 1
            changes = {
                "model": source,
                "name": before.served_name,
                "tokenizer": before.tokenizer_source,
                "weights_version": version,
            }
            await self._replace_or_go_back(index, before.model_copy(update=changes), leaving)
            return {"model": before.served_name, "source": source, "weights_version": version}

    async def _replace_or_go_back(self, index: int, wanted: ModelArgs, leaving: set[str]) -> None:
        """Replace those engines by at least one new one; if none starts, restore the settings of the old ones."""
        before, deployment = self._args.models[index], engine_deployment_name(index, wanted)
        await self._deploy_model(index, with_initial_replicas(wanted, len(leaving)))

        async def are_replaced() -> bool:
            overview = await asyncio.to_thread(lambda: serve.status().applications[self._application])
            if overview.status in FAILED:
                raise RayinferError(failure_of(overview))
            engines = engines_in(await self._replicas.reports())  # none where no router has answered in time
            now = {engine for engine, name in engines.items() if name == wanted.served_name}
            reported = await self._replicas.of_all(deployment, "weights")
            return have_weights(now, reported, wanted.weights_version) and await self._are_replaced(leaving)

        try:
            await self._until(are_replaced, REPLACE_S, "the engines have not got their weights yet")
        except RayinferError as error:
            await self._deploy_model(index, with_initial_replicas(before, len(leaving)))
            raise RayinferError(f"the old weights are kept: {error}") from None

    def _index_of(self, model: str | None) -> int:
        """Find a model by its name; without one, the only model there is."""
        names = [known.served_name for known in self._args.models]
        if model is None and len(names) == 1:
            return 0
        if model not in names:
            unknown = "choose a model with --model" if model is None else f"there is no model {model!r}"
            raise RayinferError(f"{unknown} (there are: {', '.join(names)})")
        return names.index(model)

    async def scale(
        self, num_engines: int | None, model: str | None = None, waits_for_nodes: bool = False
    ) -> dict[str, list[str]]:
        """Set the number of engines of one model, or of all; None restores the settings from the service's start.

        Returns the engines of each model once they are there. Streams of removed engines migrate to others.
        Raises InsufficientResources, and restores the number, when some cannot be placed, unless `waits_for_nodes`.
        """
        async with self._changing:
            index_of = {known.served_name: index for index, known in enumerate(self._args.models)}
            if model is not None:
                self._index_of(model)
            chosen, now = list(index_of) if model is None else [model], await self._replicas.engines()
            models = list(self._args.models)
            for name in chosen:
                known, original = models[index_of[name]], self._original[index_of[name]]
                models[index_of[name]] = scaled(known, original, num_engines, list(now.values()).count(name))
            before = self._args
            placement = self._placement_watcher(
                self._application, [engine_deployment_name(index_of[name], models[index_of[name]]) for name in chosen]
            )
            await self._deploy(before.model_copy(update={"models": models}))

            async def are_there() -> bool:
                if not waits_for_nodes:
                    await placement.check()
                return await self._have(chosen)

            try:
                await self._until(are_there, REPLACE_S, "the engines are not all there yet")
            except InsufficientResources as error:
                kept = list(before.models)  # others may have changed their numbers themselves meanwhile
                for name in chosen:
                    kept[index_of[name]] = with_initial_replicas(kept[index_of[name]], list(now.values()).count(name))
                await self._deploy(before.model_copy(update={"models": kept}))
                raise InsufficientResources(f"{error}; the number of engines is unchanged") from None
            now = await self._replicas.engines()
            return {name: sorted(engine for engine, its in now.items() if its == name) for name in chosen}

    async def _have(self, models: Sequence[str]) -> bool:
        """Return whether each of these models has as many engines as it should, by every router's report."""
        reports = await self._replicas.reports()
        return bool(reports) and all(
            is_allowed_count(model, len(report.models[model.served_name].engines))
            for report in reports
            for model in self._args.models
            if model.served_name in models
        )

    async def _replace_engines_of(self, models: Sequence[int]) -> None:
        """Replace all engines of these models; where resources suffice, a new one starts before an old one leaves."""
        revision, now = f"replaced at {time.time():.3f}", list((await self._replicas.engines()).values())
        replaced = [
            with_initial_replicas(model, now.count(model.served_name)).model_copy(update={"revision": revision})
            if index in models
            else model
            for index, model in enumerate(self._args.models)
        ]
        await self._deploy(self._args.model_copy(update={"models": replaced}))

    async def _take_out(self, engine: str, index: int, shrink: bool) -> None:
        """Remove one of several engines: its streams first, then its process."""
        model = self._args.models[index]
        if shrink and model.autoscaling is not None:
            raise RayinferError(
                f"model {model.served_name!r} has autoscaling, which excludes --shrink: use `rayinfer scale`"
            )
        if shrink and model.num_replicas == 1:
            raise RayinferError(
                f"{engine} is the only engine of model {model.served_name!r}: --shrink would leave none"
            )
        await self._replicas.of_all(ROUTER, "remove_engine", engine)
        deployment = engine_deployment_name(index, model)

        async def has_heard() -> bool:
            # One slow replica leaves all without an answer.
            return any(await self._replicas.of_all(deployment, "leave", engine)) or await self._replicas.is_gone(engine)

        await self._until(
            has_heard, self.leave_s, f"{engine} does not answer; Serve replaces it once its health checks fail"
        )
        if shrink:
            # Until it is gone, Serve would choose itself which engine is one too many.
            await self._until(lambda: self._replicas.is_gone(engine), REPLACE_S, f"{engine} has not ended yet")
            await self._deploy_model(index, model.model_copy(update={"num_replicas": model.num_replicas - 1}))

    async def _deploy_model(self, index: int, model: ModelArgs) -> None:
        models = [*self._args.models[:index], model, *self._args.models[index + 1 :]]
        await self._deploy(self._args.model_copy(update={"models": models}))

    async def _deploy(self, args: LLMAppArgs) -> None:
        """Deploy the application again: Serve replaces what was built from other settings, and nothing else."""
        await asyncio.to_thread(self._redeploy, args)
        self._args = args

    async def _are_replaced(self, leaving: set[str]) -> bool:
        reports = await self._replicas.reports()  # none is no answer: a router may be busy, or leave just now
        engines = engines_in(reports)
        numbers = list(engines.values())
        return bool(reports) and (
            not leaving & set(engines)
            and all(is_allowed_count(model, numbers.count(model.served_name)) for model in self._args.models)
            and all(model.ready or model.engines for report in reports for model in report.models.values())
        )

    async def _all_follow(self, limits: RouterLimits) -> bool:
        reports = await self._replicas.reports()
        return len(reports) >= self._args.fewest_routers and all(report.limits == limits for report in reports)

    async def _until(self, condition: Callable[[], Awaitable[bool]], timeout_s: float, failure: str) -> None:
        latest = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > latest:
                raise RayinferError(f"{failure} after {timeout_s:.0f} s; see `rayinfer status`")
            await asyncio.sleep(POLL_S)
