"""A router's client of an engine actor."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from rayinfer.errors import EngineDead
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import StepMessage
from rayinfer.protocols import ControlAction, GenerationRequest, KVAddress, ModelDescription
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_server import TransportAddress
from rayinfer_deployments.cluster.transport_tls import client_tls
from rayinfer_deployments.discovery.engine_address import EngineAddress
from rayinfer_deployments.discovery.engine_report import EngineReport


class RayEngineClient:
    """EngineClient of an actor: control calls through its Ray handle, requests and tokens over a connection.

    Ray's streaming generators cost a millisecond per message, which comes once per step. A lost actor shows as
    EngineDead everywhere.
    """

    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor
        self._line = EngineConnection(self._find_line, tls=client_tls())

    @staticmethod
    def at(address: EngineAddress) -> "RayEngineClient":
        """Find the actor by its name, which blocks for a moment; raises EngineDead when there is none."""
        try:
            return RayEngineClient(ray.get_actor(address.actor_name, namespace=address.namespace))
        except ValueError:
            raise EngineDead(f"no engine is running under the name {address.actor_name}") from None

    async def describe(self) -> ModelDescription:
        """Return the description of the engine's model."""
        with _lost_actor_is_dead_engine():
            description: ModelDescription = await self._actor.describe.remote()
        return description

    async def kv_address(self) -> KVAddress | None:
        """Return where the engine's process serves KV blocks, if it does."""
        return (await self._find_line()).kv_address

    async def is_stuck(self) -> bool:
        """Return whether the engine has been in one step for too long; raises EngineDead when its loop has ended."""
        report: EngineReport = await _result_of(self._actor.report.remote())
        return report.is_stuck

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Send requests to the engine."""
        await self._line.submit(requests, router_id)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        await self._line.abort(request_ids)

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Have the engine compile a grammar; raises InvalidParameter for one that it refuses."""
        await self._line.compile_grammar(spec, router_id)

    async def control(self, action: ControlAction) -> list[str]:
        """Run an action on the engine; returns its state."""
        states: list[str] = await _result_of(self._actor.control.remote(action))
        return states

    def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages; closing it aborts this router's requests."""
        return self._line.outputs(router_id)

    async def _find_line(self) -> TransportAddress:
        with _lost_actor_is_dead_engine():
            address: TransportAddress = await self._actor.line.remote()
        return address


async def _result_of(call: Awaitable[Any]) -> Any:
    """Await a call; the engine's exception is raised here, without Ray's traceback."""
    try:
        with _lost_actor_is_dead_engine():
            return await call
    except RayTaskError as error:
        raise error.cause from None


@contextlib.contextmanager
def _lost_actor_is_dead_engine() -> Iterator[None]:
    try:
        yield
    except RayActorError as error:
        raise EngineDead(f"the engine's process is gone ({type(error).__name__})") from None
