"""An engine with a thread of its own: requests go in from an event loop, one message per step comes back."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rayinfer.engine.engine import Engine
from rayinfer.engine.message_box import MessageBox
from rayinfer.errors import EngineDead, RequestError
from rayinfer.outputs import EngineStats, StepMessage, TokenDelta
from rayinfer.protocols import GenerationRequest, ModelDescription

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: Sequence[GenerationRequest]
    router_id: str


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Forget:
    """The router is gone: end what it asked for."""

    router_id: str


class _Stop:
    """The loop's last command."""


_Command = _Submit | _Abort | _Forget | _Stop


@dataclass(slots=True)
class _Router:
    box: MessageBox = field(default_factory=MessageBox)
    request_ids: set[str] = field(default_factory=set)


class AsyncEngine:
    """The EngineClient of an engine in this process.

    The engine belongs to the thread: everything reaches it through one queue, between two steps. The thread waits for
    no reader. If a step raises what no single request explains, the engine is dead: `failure` says why, and every
    `outputs` iterator raises EngineDead.
    """

    def __init__(self, engine: Engine, *, epoch: int = 0, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.description: ModelDescription = engine.description
        self.failure: BaseException | None = None
        self._engine = engine
        self._epoch = epoch
        self._heartbeat_s = heartbeat_s
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._routers: dict[str, _Router] = {}
        self._lock = threading.Lock()  # over _routers, which both sides look up
        self._owners: dict[str, str] = {}  # request id -> router id; the thread's own
        self._stats = engine.stats
        self._last_beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Queue requests for the next step; one that the engine refuses ends with "error"."""
        self._raise_if_dead()
        self._router(router_id)
        self._commands.put(_Submit(list(requests), router_id))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests before the next step; unknown ids are ignored."""
        self._commands.put(_Abort(list(request_ids)))

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages; closing the iterator aborts all of the router's requests."""
        box = self._router(router_id).box
        try:
            while (message := await box.take()) is not None:
                yield message
            self._raise_if_dead()
        finally:
            self._commands.put(_Forget(router_id))

    async def shutdown(self) -> None:
        """Abort everything, stop the loop and give the engine's memory back."""
        self._commands.put(_Stop())
        while self._thread.is_alive():
            await asyncio.sleep(0.01)

    @property
    def is_alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    @property
    def seconds_since_last_beat(self) -> float:
        """How long ago the loop last came round; steps and idle waits both count."""
        return time.monotonic() - self._last_beat

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges after the latest step."""
        return self._stats

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return self._stats.num_running + self._stats.num_waiting + self._commands.qsize()

    def _router(self, router_id: str) -> _Router:
        with self._lock:
            return self._routers.setdefault(router_id, _Router())

    def _raise_if_dead(self) -> None:
        if self.failure is not None:
            raise EngineDead(f"the engine ended: {type(self.failure).__name__}")

    # From here on: the engine's thread

    def _run(self) -> None:
        try:
            while self._obey():
                self._publish(self._engine.step() if self._engine.has_unfinished_requests else [])
        except BaseException as error:
            logger.exception("the engine loop ends")
            self.failure = error
        finally:
            self._engine.exit()
            with self._lock:
                for router in self._routers.values():
                    router.box.close()

    def _obey(self) -> bool:
        """Carry out what has been asked since the last step; when idle, wait for it, a heartbeat long at most."""
        is_idle = not self._engine.has_unfinished_requests
        try:
            command = self._commands.get(block=is_idle, timeout=self._heartbeat_s if is_idle else None)
            while not isinstance(command, _Stop):
                self._carry_out(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            self._last_beat = time.monotonic()
            return True
        return False

    def _carry_out(self, command: _Submit | _Abort | _Forget) -> None:
        if isinstance(command, _Submit):
            for request in command.requests:
                self._add(request, command.router_id)
        elif isinstance(command, _Abort):
            self._end(command.request_ids)
        else:
            with self._lock:
                router = self._routers.pop(command.router_id, _Router())
            self._end(list(router.request_ids))

    def _add(self, request: GenerationRequest, router_id: str) -> None:
        router = self._router(router_id)
        try:
            self._engine.add_request(request)
        except RequestError as error:
            logger.warning("request %s refused: %s", request.request_id, error)
            router.box.put(self._message([TokenDelta(request.request_id, 0, [], finish_reason="error")]))
            return
        router.request_ids.add(request.request_id)
        self._owners[request.request_id] = router_id

    def _end(self, request_ids: Sequence[str]) -> None:
        aborted = (self._engine.abort(request_id) for request_id in request_ids)
        self._publish([delta for delta in aborted if delta is not None])

    def _publish(self, deltas: list[TokenDelta]) -> None:
        """Give every router its own deltas and the engine's state."""
        by_router: dict[str, list[TokenDelta]] = {}
        for delta in deltas:
            router_id = (
                self._owners[delta.request_id] if delta.finish_reason is None else self._disown(delta.request_id)
            )
            by_router.setdefault(router_id, []).append(delta)
        self._stats = self._engine.stats
        stored, removed = self._engine.take_block_events()
        with self._lock:
            routers = dict(self._routers)
        for router_id, router in routers.items():
            router.box.put(self._message(by_router.get(router_id, []), stored, removed))

    def _disown(self, request_id: str) -> str:
        router_id = self._owners.pop(request_id)
        router = self._routers.get(router_id)
        if router is not None:
            router.request_ids.discard(request_id)
        return router_id

    def _message(
        self, deltas: list[TokenDelta], stored: Sequence[bytes] = (), removed: Sequence[bytes] = ()
    ) -> StepMessage:
        return StepMessage(
            epoch=self._epoch,
            step=self._stats.num_steps_total,
            deltas=deltas,
            stats=self._stats,
            blocks_stored=list(stored),
            blocks_removed=list(removed),
        )
