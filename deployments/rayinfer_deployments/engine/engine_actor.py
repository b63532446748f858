"""The process in which one engine runs; routers talk to it directly, over a line of their own (`rayinfer/transport`).

The engine is imported when it is built: a replica names this class too, and should not pay for torch.
"""

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import ray

from rayinfer.config import EngineConfig
from rayinfer.errors import EngineDead
from rayinfer.kv_transfer.engine_transfers import EngineTransfers
from rayinfer.outputs import EngineStats
from rayinfer.predictors.warm_up import predictor_warm_up
from rayinfer.protocols import ControlAction, EngineClient, GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.startup_steps import startup_step
from rayinfer.transport.engine_server import EngineServer, TransportAddress
from rayinfer_deployments.cluster.imports_without_gc import no_collection
from rayinfer_deployments.cluster.ray_environment import show_only_gpus, use_interface_of
from rayinfer_deployments.cluster.transport_tls import kv_client_tls, kv_server_tls, make_engine_server
from rayinfer_deployments.discovery.engine_report import EngineReport
from rayinfer_deployments.engine.start_reports import reports_path, written_steps

if TYPE_CHECKING:
    from rayinfer.engine.loop.async_engine import AsyncEngine
    from rayinfer.engine.ranks.rendezvous import Rendezvous, RendezvousHost

ENGINE_BUILDING = "rayinfer_deployments.engine.engine_building"
CONTROL_ROUTER = "engine-actor"  # under this name the engine's own process asks for the warm-up
WARM_UP = "warm-up/0"
MAX_CONCURRENT_CALLS = 1000
DRAIN_INTERVAL_S = 0.05
FINAL_MESSAGE_S = 1.0  # for routers to receive the engine's last message

Result = TypeVar("Result")


class EngineActor:
    """Ray actor around one engine: builds it, runs its loop and serves routers.

    Made a Ray actor by its replica, which owns it: when the replica's process ends, so does this one.
    """

    def __init__(self, config: EngineConfig, num_processes_on_node: int) -> None:
        self._config = config
        self._num_processes_on_node = num_processes_on_node
        self._rendezvous: RendezvousHost | None = None  # of an engine with several ranks
        self._engine: AsyncEngine | None = None
        self._server: EngineServer | None = None
        self._transfers: EngineTransfers | None = None  # of KV blocks between machines
        self._address: TransportAddress | None = None

    async def open_group(self, spans_nodes: bool = False) -> "Rendezvous":
        """Open the rendezvous, at which the engine's other ranks connect to this one, its first.

        It listens at the node's address if ranks lie on several nodes, and else on loopback.
        """
        see_own_gpus()
        own = [ray.util.get_node_ip_address()] if spans_nodes else []
        for address in own:
            use_interface_of(address)
        with self._reported_steps():
            host: RendezvousHost = await _in_own_thread(lambda: _building().RendezvousHost(*own))
        self._rendezvous = host
        return host.rendezvous

    async def start(self, rendezvous: "Rendezvous | None" = None) -> ModelDescription:
        """Load the model and take one step with it; raises ModelLoadError in one line when it cannot be loaded.

        With several ranks `rendezvous` is what `open_group` returns, and the others are waited for.
        """
        assert (rendezvous is None) == (self._rendezvous is None), "calls of an actor may overtake each other"
        with self._reported_steps():
            self._engine = await _in_own_thread(self._build)
            self._engine.start()
            with startup_step("warming up"):
                await self._warm_up()
        host = ray.util.get_node_ip_address()
        client: EngineClient = self._engine
        if (blocks := self._engine.stored_blocks) is not None:
            self._transfers = EngineTransfers(
                self._engine, self._engine.description, blocks, host, tls=kv_server_tls(host), make_tls=kv_client_tls
            )
            client = self._transfers.engine
        self._server = make_engine_server(client, host)
        address = await self._server.start(host)
        self._address = replace(address, kv_address=None if self._transfers is None else self._transfers.address)
        return self._engine.description

    async def line(self) -> TransportAddress:
        """Return the address at which the engine listens for routers; tokens do not pass through Ray."""
        if self._address is None:
            raise EngineDead("the engine has not started")
        return self._address

    async def control(self, action: ControlAction) -> list[str]:
        """Run an action on the engine between two steps; returns its state."""
        return await self._started.control(action)

    async def describe(self) -> ModelDescription:
        """Return the model's description."""
        return self._started.description

    async def report(self) -> EngineReport:
        """Return an EngineReport; raises EngineDead with the reason when the engine's loop has ended."""
        engine = self._started
        if not engine.is_alive:
            raise EngineDead(f"the engine's loop has ended: {engine.failure!r}")
        return EngineReport(stats=engine.stats, stalled_s=engine.stalled_s, stall_limit_s=engine.stall_limit_s)

    async def stats(self) -> EngineStats:
        """Return the engine's counters."""
        return self._started.stats

    async def drain(self) -> None:
        """Return once no request is left; the caller sets the timeout."""
        while self._started.is_alive and (self._started.num_unfinished or self._num_held):  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(DRAIN_INTERVAL_S)

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def shutdown(self) -> None:
        """End the engine's loop, aborting running requests; close connections after the final messages to routers."""
        if self._transfers is not None:
            await asyncio.to_thread(self._transfers.close)
        if self._engine is not None:
            await self._engine.shutdown()
        if self._server is not None:
            await self._server.close(FINAL_MESSAGE_S)

    @property
    def _num_held(self) -> int:
        return 0 if self._transfers is None else self._transfers.engine.num_held

    @property
    def _started(self) -> "AsyncEngine":
        if self._engine is None:
            raise EngineDead("the engine has not started")
        return self._engine

    def _reported_steps(self) -> AbstractContextManager[None]:
        if not ray.is_initialized():  # asking for its context would start a cluster
            return contextlib.nullcontext()
        context = ray.get_runtime_context()
        return written_steps(reports_path(context.gcs_address), context.get_actor_name() or "")

    def _build(self) -> "AsyncEngine":
        engine: AsyncEngine = _building().build_async_engine(
            self._config, self._num_processes_on_node, self._rendezvous
        )
        return engine

    async def _warm_up(self) -> None:
        """Run a prompt of one token, or an item, through the whole engine, so that the first client pays nothing."""
        engine = self._started
        request = warm_up_request(engine.description)
        if request is None:
            return
        async with contextlib.aclosing(engine.outputs(CONTROL_ROUTER)) as messages:  # type: ignore[type-var]
            await engine.submit([request], CONTROL_ROUTER)
            async for message in messages:
                if any(delta.finish_reason is not None for delta in message.deltas):
                    return


def warm_up_request(description: ModelDescription) -> GenerationRequest | None:
    """Make the request that an engine computes before it is ready; None for tensors of unknown shapes."""
    if description.predictor is not None:
        return predictor_warm_up(WARM_UP, description.predictor, takes_text=description.vocab_size > 0)
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    return GenerationRequest(request_id=WARM_UP, prompt_token_ids=[0], sampling_params=params)


def see_own_gpus() -> None:
    """Make only the GPUs that Ray has reserved for a rank visible to it; without any, it computes on the CPU.

    Then each rank's first GPU is its own: ranks that take a GPU of all there are would take the same one.
    """
    show_only_gpus(ray.get_runtime_context().get_accelerator_ids()["GPU"])


def _building() -> ModuleType:
    with startup_step("importing torch"), no_collection():
        return importlib.import_module(ENGINE_BUILDING)


async def _in_own_thread(function: Callable[[], Result]) -> Result:
    """Run a function in a thread that ends with it, and with the thread its team of OpenMP threads.

    A team that stayed would cost the engine's threads their spinning: libgomp lets threads spin at a barrier only while
    there are no more of them than cores, and puts them to sleep, hundreds of times a step, if there are.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="building") as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, function)
