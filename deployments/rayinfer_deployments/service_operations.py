"""What operators do to a service that runs: look at it, stop and start its engines, take one out, change its limits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from rayinfer.errors import RayinferError
from rayinfer.routing.limits import RouterLimits, router_limits
from rayinfer_deployments.app_args import LLMAppArgs
from rayinfer_deployments.applications import ROUTER, build_llm_app, engine_deployment_name
from rayinfer_deployments.control_socket import Operation
from rayinfer_deployments.engine_names import ENGINE_PREFIX
from rayinfer_deployments.router import ControlAction, RouterReport
from rayinfer_deployments.service_startup import failure_of, redeploy

POLL_S = 0.1
ANSWER_S = 5.0  # of routers, to questions
CONTROL_S = 120.0  # of engines that give their memory back, or take it
APPLY_S = 30.0  # until every router has other limits
FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
REPLACE_S = 600.0  # until an engine is loaded in another's place


class ServiceOperations:
    """Carries out commands for the application that this process has deployed; one change at a time."""

    def __init__(
        self, application: str, args: LLMAppArgs, *, route_prefix: str = "/", missing_settings: Sequence[str] = ()
    ) -> None:
        self._application = application
        self._route_prefix = route_prefix
        self._args = args
        self._missing_settings = list(missing_settings)
        self._changing = asyncio.Lock()
        self._handles: dict[str, DeploymentHandle] = {}

    def by_name(self) -> dict[str, Operation]:
        """List the commands, as the control socket offers them."""
        return {
            "status": self.status,
            "control": self.control,
            "drain": self.drain,
            "limits": self.limits,
            "change_limits": self.change_limits,
        }

    async def status(self) -> dict[str, Any]:
        """Tell how Serve's deployments, the routers and the engines are."""
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
                    "wanted": self._num_wanted(name),
                    "replicas": {str(state): count for state, count in deployment.replica_states.items()},
                }
                for name, deployment in deployments
            ],
            "routers": [_in_plain_types(report) for report in await self._reports()],
            "missing_settings": self._missing_settings,
        }

    async def control(self, action: ControlAction, model: str | None = None, level: int = 1) -> list[str]:
        """Pause, resume, put to sleep or wake the engines of one model or of all; tells the names of the models."""
        response = self._handle(ROUTER).control_engines.remote(action, model, level)
        await _within(CONTROL_S, response, "the engines")
        return [model] if model is not None else [known.served_name for known in self._args.models]

    async def limits(self) -> dict[str, Any]:
        """Tell the routers' limits."""
        return self._args.limits.model_dump(mode="json")

    async def change_limits(self, limits: dict[str, Any]) -> dict[str, Any]:
        """Have all routers follow other limits, later ones too; raises ConfigError for bad limits."""
        async with self._changing:
            wanted = router_limits(limits)
            await self._deploy(self._args.model_copy(update={"limits": wanted}))
            await self._until(lambda: self._all_follow(wanted), APPLY_S, "the routers have not taken the limits")
        return wanted.model_dump(mode="json")

    async def drain(self, engine: str | None = None, shrink: bool = False) -> dict[str, Any]:
        """Replace one engine, or with None all of them; with `shrink` its model has one engine fewer afterwards.

        Tells which engines left and which there are now. Streams go on at other engines.
        """
        async with self._changing:
            before = await self._engines()
            if engine is None:
                leaving = set(before)
                await self._replace_engines_of(range(len(self._args.models)))
            else:
                engine = _find_engine(engine, before)
                leaving = {engine}
                index = [model.served_name for model in self._args.models].index(before[engine])
                if self._args.models[index].num_replicas == 1 and not shrink:
                    await self._replace_engines_of([index])
                else:
                    await self._take_out(engine, index, shrink)
            await self._until(lambda: self._are_replaced(leaving), REPLACE_S, "the engines are not replaced yet")
            return {"left": sorted(leaving), "engines": sorted(await self._engines())}

    async def _replace_engines_of(self, models: Sequence[int]) -> None:
        """Have Serve build all engines of these models anew: where there is room, each before another leaves."""
        await self._deploy(self._with_models(models, revision=f"replaced at {time.time():.3f}"))

    async def _take_out(self, engine: str, index: int, shrink: bool) -> None:
        """Have one of several engines leave: its streams first, then its process."""
        model = self._args.models[index]
        if shrink and model.num_replicas == 1:
            raise RayinferError(f"{engine} is the only engine of model {model.served_name!r}, which needs one")
        await self._of_all(ROUTER, "dismiss_engine", engine)
        if not any(await self._of_all(engine_deployment_name(index, model), "leave", engine)):
            raise RayinferError(f"{engine} does not answer; Serve replaces it by itself once it is found dead")
        if shrink:
            # Until it is gone, Serve would choose itself which engine is one too many.
            await self._until(lambda: _is_gone(engine), REPLACE_S, f"{engine} has not ended yet")
            await self._deploy(self._with_models([index], num_replicas=model.num_replicas - 1))

    def _with_models(self, indices: Sequence[int], **changes: Any) -> LLMAppArgs:
        models = [
            model.model_copy(update=changes) if index in indices else model
            for index, model in enumerate(self._args.models)
        ]
        return self._args.model_copy(update={"models": models})

    async def _deploy(self, args: LLMAppArgs) -> None:
        """Hand Serve the application anew: it replaces what is made from other settings, and nothing else."""
        await asyncio.to_thread(lambda: redeploy(build_llm_app(args), self._application, self._route_prefix))
        self._args = args

    async def _engines(self) -> dict[str, str]:
        """Name the engines that take requests, with the model of each."""
        reports = await self._reports()
        if not reports:
            raise RayinferError("no router answers; `rayinfer status` tells more")
        return {engine: name for report in reports for name, model in report.models.items() for engine in model.engines}

    async def _are_replaced(self, leaving: set[str]) -> bool:
        engines = await self._engines()
        wanted = sum(model.num_replicas for model in self._args.models)
        reports = await self._reports()
        return (
            not leaving & set(engines)
            and len(engines) == wanted
            and all(model.ready or model.engines for report in reports for model in report.models.values())
        )

    async def _all_follow(self, limits: RouterLimits) -> bool:
        reports = await self._reports()
        return len(reports) >= self._args.num_routers and all(report.limits == limits for report in reports)

    async def _reports(self) -> list[RouterReport]:
        """Ask every router; empty while there is none."""
        answers = await self._of_all(ROUTER, "report")
        return [answer for answer in answers if isinstance(answer, RouterReport)]

    async def _of_all(self, deployment: str, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all replicas; those that cannot answer do not count."""
        if self._application not in await asyncio.to_thread(lambda: serve.status().applications):
            return []
        response = self._handle(deployment).broadcast(method, *arguments)
        try:
            answers = await response.results_async(timeout_s=ANSWER_S, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            return []  # there is no replica, or none that answers
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _until(self, condition: Callable[[], Awaitable[bool]], timeout_s: float, failure: str) -> None:
        latest = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > latest:
                raise RayinferError(f"{failure} after {timeout_s:.0f} s; `rayinfer status` tells more")
            await asyncio.sleep(POLL_S)

    def _handle(self, deployment: str) -> DeploymentHandle:
        if deployment not in self._handles:
            self._handles[deployment] = serve.get_deployment_handle(deployment, self._application)
        return self._handles[deployment]

    def _num_wanted(self, deployment: str) -> int | None:
        if deployment == ROUTER:
            return self._args.num_routers
        wanted = {
            engine_deployment_name(index, model): model.num_replicas for index, model in enumerate(self._args.models)
        }
        return wanted.get(deployment)


def _find_engine(name: str, engines: dict[str, str]) -> str:
    """Find an engine by its name, or by a part of it that no other has."""
    found = [engine for engine in engines if name == engine] or [engine for engine in engines if name in engine]
    if len(found) != 1:
        known = ", ".join(engine.removeprefix(ENGINE_PREFIX) for engine in sorted(engines)) or "none"
        raise RayinferError(f"{'more than one' if found else 'no'} engine is called {name!r} (there are: {known})")
    return found[0]


async def _is_gone(engine: str) -> bool:
    try:
        await asyncio.to_thread(ray.get_actor, engine, "serve")
    except ValueError:
        return True
    return False


async def _within(timeout_s: float, response: Any, whose: str) -> Any:
    """Wait for an answer of a replica; raises RayinferError with what went wrong there."""
    try:
        async with asyncio.timeout(timeout_s):
            return await response
    except TimeoutError:
        raise RayinferError(f"{whose} have not answered within {timeout_s:.0f} s") from None
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, RayinferError) else RayinferError(str(cause)) from None
    except RayActorError:
        raise RayinferError("the router is gone; Serve builds another") from None


def _in_plain_types(report: RouterReport) -> dict[str, Any]:
    return {
        "name": report.router,
        "models": [
            {
                "name": name,
                "ready": model.ready,
                "reason": model.reason,
                "num_waiting": model.num_waiting,
                "engines": [
                    {"name": engine, "kv_cache_usage": stats.kv_cache_usage, **asdict(stats)}
                    for engine, stats in model.engines.items()
                ],
            }
            for name, model in report.models.items()
        ],
    }
