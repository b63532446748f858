"""Rank 0's executor: sends every command to the other ranks and runs its own part of it."""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from rayinfer import wire
from rayinfer.engine.plan.executor import Executor, StepHandle
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection, any_closed
from rayinfer.engine.ranks.pipeline_link import PipelineLink
from rayinfer.engine.ranks.rank_failures import closed_rank, own_cause, rank_failed, rank_lost
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rank_messages import (
    Done,
    DropAdapter,
    Failed,
    LoadAdapter,
    RankMessage,
    ReadAdapter,
    RefusedAdapter,
    Release,
    Restore,
    Shutdown,
    StageResult,
)
from rayinfer.engine.ranks.timed_group import StageTimes
from rayinfer.errors import AdapterRefused, EngineDead


class GroupExecutor:
    """An Executor over several ranks, which start and end together.

    Nothing that fails here is tried again: after a failure the ranks' states are unknown. The first failure ends the
    group, and every later call raises EngineDead with its cause. A rank that has exited or hangs is noticed in a step
    as well as between two.
    """

    def __init__(
        self,
        group: RankGroup,
        part: Executor,
        end_ranks: Callable[[float], None] = lambda grace_s: None,
        link: PipelineLink | None = None,
    ) -> None:
        self.supports_async_scheduling = False
        self.max_concurrent_batches = min(2, group.coordinates.pipeline_parallel_size)
        self.stage_times = StageTimes(group.coordinates.pipeline_parallel_size)
        self._group = group
        self._limits = group.limits
        self._own_part: Executor | None = part  # until the end
        self._end_ranks = end_ranks
        self._link = link  # the part's, to the other stages
        self._lock = threading.RLock()  # one command at a time, all ranks in the same order
        self._in_flight: deque[StepInFlight] = deque()
        self._loaded_adapters: set[str] = set()  # by all ranks, their digests
        self._death: EngineDead | None = None
        self._is_over = False
        self._finalizer = weakref.finalize(
            self, end_ranks, group.limits.shutdown_grace_s
        )  # also when it is garbage collected
        end_on_loss = weakref.WeakMethod(self._end_on_loss)
        group.on_loss = lambda: (method := end_on_loss()) and method()
        arguments = (weakref.ref(self), group.limits.rank_poll_s)
        threading.Thread(target=_watch_peers, args=arguments, name="ranks", daemon=True).start()

    @property
    def stage_idle_shares(self) -> list[float]:
        """See Executor."""
        if self._group.coordinates.pipeline_parallel_size == 1:
            return []
        return self.stage_times.idle_shares(time.perf_counter())

    @property
    def communication_s(self) -> float:
        """Seconds that rank 0 has spent so far in collectives of its stage's ranks."""
        return self._group.communication_s

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start a step; its tokens are here when rank 0 is in the last stage, or else come when they are ready."""
        with self._command():
            waited_s, now = self._waiting_s, time.perf_counter()
            self.stage_times.start(now)
            self._broadcast(plan)
            own = self._part.submit(plan)
            if self._group.coordinates.pipeline_parallel_size == 1:
                self.stage_times.stop(time.perf_counter())
                return own
            self.stage_times.add(0, time.perf_counter() - now - (self._waiting_s - waited_s))
            step = StepInFlight(self)
            self._in_flight.append(step)
            return step

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Have every rank copy its part of the blocks."""
        with self._command():
            self._broadcast(copy)
            self._part.copy_blocks(copy)

    def start_reading(self, folder: str) -> Future[Any]:
        """Have every rank start to read an adapter; others may take a little longer than this one."""
        with self._command():
            self._broadcast(ReadAdapter(folder))
            return self._part.start_reading(folder)

    def load_adapter(self, folder: str) -> AdapterFacts:
        """Have every rank load an adapter; raises AdapterRefused where one refuses, or has another content there."""
        with self._command():
            self._broadcast(LoadAdapter(folder))
            found: list[AdapterFacts | str] = []
            try:
                found.append(self._part.load_adapter(folder))
            except AdapterRefused as error:  # in a command it would end the group
                found.append(str(error))
            found += [self._adapter_reply(rank) for rank in range(1, len(self._group.connections) + 1)]
        refusals = [each for each in found if isinstance(each, str)]
        facts = [each for each in found if isinstance(each, AdapterFacts)]
        digests = {each.digest for each in facts}
        if not refusals and len(digests) == 1:
            self._loaded_adapters |= digests
            return facts[0]
        for digest in digests - self._loaded_adapters:  # others were there before, and requests may have them
            self.drop_adapter(digest)
        raise AdapterRefused(refusals[0] if refusals else f"{folder} has other content on the node of another rank")

    def drop_adapter(self, digest: str) -> None:
        """Have every rank forget an adapter."""
        with self._command():
            self._broadcast(DropAdapter(digest))
            self._part.drop_adapter(digest)
            self._loaded_adapters.discard(digest)

    def _adapter_reply(self, rank: int) -> AdapterFacts | str:
        reply = self._reply_of(rank)
        if isinstance(reply, RefusedAdapter):
            return reply.reason
        if not isinstance(reply, AdapterFacts):
            raise _unexpected(rank, reply)
        return reply

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Have every rank release its memory."""
        with self._command():
            self._broadcast(Release(level, list(blocks_in_use), list(window_pages_in_use)))
            self._part.release(level, blocks_in_use, window_pages_in_use)
            self._await_done()

    def restore(self, level: SleepLevel) -> None:
        """Have every rank allocate its memory again."""
        with self._command():
            self._broadcast(Restore(level))
            self._part.restore(level)
            self._await_done()

    def check(self) -> None:
        """Raise EngineDead once a rank is gone."""
        if self._death is not None:
            raise EngineDead(str(self._death))

    def shutdown(self) -> None:
        """Let every rank exit, and wait until they have."""
        with self._lock:
            with contextlib.suppress(EngineDead):
                while self._in_flight and self._death is None:
                    self.take_result(self._in_flight[0])
            self._is_over = True
            for connection in self._group.connections:
                with contextlib.suppress(ConnectionLost):
                    connection.send(Shutdown(), self._limits.final_message_s)
            self._group.close()
            if self._own_part is not None:
                self._own_part.shutdown()
            self._own_part = self._link = None  # which keep torch's groups, and those their ports
        self._finalizer()

    # One command

    @contextlib.contextmanager
    def _command(self) -> Iterator[None]:
        with self._lock:
            self.check()
            try:
                yield
                if self._group.was_aborted:
                    raise EngineDead("the wait for another rank was aborted")
            except BaseException as error:
                # Even an interruption: the others are in the middle of the command that this rank has left.
                self._die(error)
                if isinstance(error, Exception):
                    self.check()
                raise

    def _broadcast(self, message: RankMessage) -> None:
        frame = wire.encode(message)
        for rank, connection in enumerate(self._group.connections, start=1):
            try:
                connection.send_frame(frame, self._limits.step_timeout_s)
            except ConnectionLost as error:
                raise rank_lost(rank, error) from None

    def _await_done(self) -> None:
        for rank in range(1, len(self._group.connections) + 1):
            if not isinstance(reply := self._reply_of(rank), Done):
                raise _unexpected(rank, reply)

    def _reply_of(self, rank: int) -> RankMessage:
        """Receive a rank's reply to the last command, behind the results of steps that are in flight."""
        connection = self._group.connections[rank - 1]
        while isinstance(reply := self._receive(rank, connection, self._limits.start_timeout_s), StageResult):
            self._record(rank, reply)
        return reply

    def _receive(self, rank: int, connection: ControlConnection, timeout_s: float) -> RankMessage:
        try:
            message = connection.receive(timeout_s)
        except (ConnectionLost, wire.BadMessage) as error:
            raise rank_lost(rank, error) from None
        if isinstance(message, Failed):
            raise rank_failed(rank, message)
        return message

    @property
    def _part(self) -> Executor:
        if self._own_part is None:
            raise EngineDead("the engine has ended")
        return self._own_part

    @property
    def _waiting_s(self) -> float:
        return 0.0 if self._link is None else self._link.waiting_s

    # Steps in flight in later stages

    def take_result(self, step: "StepInFlight") -> SampledTokens:
        """Wait for a step, and for those before it."""
        with self._command():
            while step.sampled is None:
                self._finish_oldest()
            return step.sampled

    def _finish_oldest(self) -> None:
        """Receive the oldest step's results from the first tensor rank of every later stage."""
        coordinates = self._group.coordinates
        oldest = self._in_flight[0]
        for stage in range(1, coordinates.pipeline_parallel_size):
            rank = stage * coordinates.tensor_parallel_size
            if stage not in oldest.results:
                reply = self._receive(rank, self._group.connections[rank - 1], self._limits.step_timeout_s)
                if not isinstance(reply, StageResult):
                    raise _unexpected(rank, reply)
                self._record(rank, reply)
        self._in_flight.popleft()
        last = coordinates.pipeline_parallel_size - 1
        oldest.sampled = oldest.results[last].sampled
        if oldest.sampled is None:
            raise EngineDead(f"stage {last} sent a result without tokens")
        if not self._in_flight:
            self.stage_times.stop(time.perf_counter())

    def _record(self, rank: int, result: StageResult) -> None:
        stage = rank // self._group.coordinates.tensor_parallel_size
        step = next(step for step in self._in_flight if stage not in step.results)
        step.results[stage] = result
        self.stage_times.add(stage, result.busy_s)

    # The end

    def note_closed_connection(self) -> None:
        """End the group when a connection is closed at its other end between two commands, as in one."""
        self._group.abort_device_waits()
        with self._lock, contextlib.suppress(EngineDead), self._command():
            if (loss := closed_rank(self._group.connections, 1)) is not None:
                raise loss

    def _end_on_loss(self) -> None:
        """End all ranks at once: waits in gloo end when the hung rank's process is gone."""
        if self._death is None and not self._is_over:
            self._death = EngineDead(f"a rank of the engine failed: {self._group.loss}")
            self._end_ranks(0.0)

    def _die(self, error: BaseException) -> None:
        if self._is_over:
            return
        if self._death is None:
            cause = self._group.cause_of(error) if isinstance(error, Exception) else own_cause(error)
            self._death = EngineDead(f"a rank of the engine failed: {cause}")
        self._group.close()
        self._end_ranks(self._limits.final_message_s)

    @property
    def watched_connections(self) -> list[ControlConnection] | None:
        """The connections to watch; None once the group is over."""
        return None if self._is_over or self._death is not None else self._group.connections


class StepInFlight:
    """The handle of a step that later stages have yet to compute."""

    def __init__(self, executor: GroupExecutor) -> None:
        self._executor = executor
        self.results: dict[int, StageResult] = {}  # by stage
        self.sampled: SampledTokens | None = None

    def result(self) -> SampledTokens:
        """Wait for the step's tokens; raises EngineDead."""
        return self._executor.take_result(self)


def _watch_peers(reference: "weakref.ref[GroupExecutor]", poll_s: float) -> None:
    """Watch the connections in a thread, with a weak reference to the executor."""
    while (executor := reference()) is not None and (connections := executor.watched_connections) is not None:
        del executor
        is_closed = any_closed(connections, poll_s)
        if (executor := reference()) is None:
            return
        if is_closed:
            executor.note_closed_connection()
        del executor


def _unexpected(rank: int, reply: RankMessage) -> EngineDead:
    return EngineDead(f"rank {rank} sent an unexpected {type(reply).__name__}")
