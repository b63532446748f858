"""The group of an engine's ranks: rendezvous, connections, heartbeats and timeouts."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch.distributed import ProcessGroup

from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection
from rayinfer.engine.ranks.heartbeats import HeartbeatMonitor
from rayinfer.engine.ranks.rank_coordinates import rank_device
from rayinfer.engine.ranks.rank_failures import (
    RankLost,
    closed_rank,
    own_cause,
    rank_failed,
    rank_lost,
    report_failure,
    root_cause,
)
from rayinfer.engine.ranks.rank_messages import Failed, ReduceMin
from rayinfer.engine.ranks.rank_store import RankStore, StoreValues, call_over
from rayinfer.engine.ranks.rendezvous import RankConnections, Rendezvous, RendezvousHost, join_rendezvous
from rayinfer.engine.ranks.timed_group import TimedGroup
from rayinfer.engine.ranks.torch_groups import TorchGroups, open_groups
from rayinfer.errors import EngineDead, RayinferError
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates, Shard
from rayinfer.wire import BadMessage


class OtherRanks(Protocol):
    """Ranks 1 to n - 1, as seen by the process that started them."""

    def check(self) -> None:
        """Raise EngineDead when one of them will not join the group."""
        ...

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank's process computes no more: it was stopped, or has exited."""
        ...

    def end(self, grace_s: float) -> None:
        """End all of them, from any thread; those that have not exited by themselves after the grace are killed."""
        ...


class RankGroup:
    """One rank's view of its group: rank 0 is connected to every other rank, each of those to rank 0.

    Groups of torch carry what models exchange; every wait in them ends after `step_timeout_s`. A hung rank is noticed
    earlier, from the first moment on: see HeartbeatMonitor. Then `on_loss` is called, in a thread of its own.
    """

    def __init__(
        self,
        coordinates: RankCoordinates,
        connections: Sequence[RankConnections],
        timeout_s: float,
        device: torch.device,
        *,
        on_loss: Callable[[], None] = lambda: None,
        is_stopped: Callable[[int], bool] | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        self.coordinates = coordinates
        self.connections = [each.commands for each in connections]
        self.device = device
        self.limits = limits
        self.loss: str | None = None  # which rank has missed its heartbeats
        self.was_aborted = False  # by `abort_device_waits`
        self.on_loss = on_loss
        self.world: ProcessGroup | None = None  # all ranks, where there are several stages
        self._shard: Shard | None = None
        self._store: RankStore | None = None  # torch's groups do not keep it alive
        self._groups: list[ProcessGroup] = []
        if device.type == "cuda":
            torch.cuda.set_device(device)
        others = range(1, coordinates.world_size) if coordinates.rank == 0 else [0]
        heartbeats = dict(zip(others, (each.heartbeats for each in connections), strict=True))
        on_silence = partial(_report_loss, weakref.ref(self))
        self.monitor = HeartbeatMonitor(heartbeats, timeout_s, on_silence, is_stopped, limits)
        self._store_connections = [each.store for each in connections]
        self._store_values = StoreValues()  # rank 0's
        weakref.finalize(self, _close_background, self.monitor, self._store_connections, self._store_values)

    @classmethod
    def host(cls, coordinates: RankCoordinates, host: RendezvousHost, others: OtherRanks | None = None) -> "RankGroup":
        """Wait for the other ranks, as rank 0; raises EngineDead. `others` are ended as soon as one of them is lost."""
        connections = host.accept(coordinates.world_size, others.check if others is not None else lambda: None)
        group = cls(
            coordinates,
            connections,
            host.rendezvous.timeout_s,
            rank_device(coordinates),
            on_loss=partial(others.end, 0.0) if others is not None else lambda: None,
            is_stopped=others.is_stopped if others is not None else None,
            limits=host.limits,
        )
        with group._closed_on_failure():
            group._store_values.serve(group._store_connections)
            store = RankStore(group._store_values.run, host.limits.start_timeout_s)
            group._open_groups(store, host.rendezvous.host, host.rendezvous.key)
        host.close()
        return group

    @classmethod
    def join(
        cls,
        coordinates: RankCoordinates,
        rendezvous: Rendezvous,
        is_stopped: Callable[[int], bool] | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> "RankGroup":
        """Connect to rank 0, as another rank; raises EngineDead if it is gone. `is_stopped` is of its process."""
        connections = join_rendezvous(coordinates, rendezvous, limits)
        try:
            device = rank_device(coordinates)
        except BaseException as error:
            report_failure(connections.commands, error)
            connections.close()
            raise
        group = cls(coordinates, [connections], rendezvous.timeout_s, device, is_stopped=is_stopped, limits=limits)
        with group._closed_on_failure():
            store = RankStore(call_over(connections.store), limits.start_timeout_s)
            group._open_groups(store, connections.commands.local_host, rendezvous.key)
        return group

    @property
    def shard(self) -> Shard:
        """This rank's shard of the model."""
        assert self._shard is not None, "the groups are not open"
        return self._shard

    @property
    def communication_s(self) -> float:
        """Seconds spent so far in collectives of this stage's tensor ranks."""
        tensors = self.shard.group
        return tensors.seconds if isinstance(tensors, TimedGroup) else 0.0

    def reduce_min(self, values: Sequence[int]) -> list[int]:
        """Return the elementwise minimum of all ranks' values; raises EngineDead."""
        own, timeout_s = list(values), self.limits.start_timeout_s
        try:
            if self.coordinates.rank:
                self.connections[0].send(ReduceMin(own), timeout_s)
                return self._receive_values(0, self.connections[0])
            others = [self._receive_values(rank, each) for rank, each in enumerate(self.connections, start=1)]
            least = [min(column) for column in zip(own, *others, strict=True)]
            for connection in self.connections:
                connection.send(ReduceMin(least), timeout_s)
        except (ConnectionLost, BadMessage, RankLost) as error:
            raise EngineDead(f"another rank is lost while models are loaded: {self.cause_of(error)}") from None
        return least

    @contextlib.contextmanager
    def explained_failures(self) -> Iterator[None]:
        """Raise EngineDead with the cause that another rank reports, in place of its symptom here."""
        try:
            yield
            if self.was_aborted:
                raise EngineDead(f"a rank of the engine failed: {self.loss}")
        except RayinferError:
            raise
        except Exception as error:
            if (cause := self.cause_of(error)) == own_cause(error):
                raise
            raise EngineDead(f"a rank of the engine failed: {cause}") from error

    def cause_of(self, error: Exception) -> str:
        """Return why the group ends, given this rank's view: the rank that failed first, and its error."""
        if self.loss is None and self.coordinates.rank == 0:
            cause = root_cause(error, self.connections, self.limits.final_message_s).text
        else:
            cause = own_cause(error)
        return self.loss or cause

    def close(self) -> None:
        """Close all connections, which wakes ranks that wait for this one."""
        _close_background(self.monitor, self._store_connections, self._store_values)
        for connection in self.connections:
            connection.close()
        for group in self._groups:
            with contextlib.suppress(RuntimeError):
                group.abort() if self.device.type == "cuda" else group.shutdown()
        self._groups.clear()
        self._shard = self.world = self._store = None

    def abort_waits(self) -> None:
        """End the waits for another rank, from any thread, but for those in gloo, which end with its process."""
        for connection in [*self.connections, *self._store_connections]:
            connection.shutdown()
        self._store_values.close()
        self.abort_device_waits()

    def abort_device_waits(self) -> None:
        """End NCCL's waits, which do not notice when another process has gone.

        Their results are invalid. torch's watchdog, which sees the abort too, may end this process with SIGABRT;
        TORCH_NCCL_ASYNC_ERROR_HANDLING=2 keeps it from that.
        """
        if self.device.type == "cuda":
            self.was_aborted = True
            for group in list(self._groups):
                with contextlib.suppress(RuntimeError):
                    group.abort()

    def _open_groups(self, store: RankStore, local_host: str, key: str) -> None:
        """Build torch's groups, and stop waiting for a rank that is lost meanwhile; raises EngineDead.

        gloo waits for ever for a rank that has registered and never connects: then its thread is abandoned.
        """
        self._store = store
        build = partial(open_groups, self.coordinates, store, self.device, local_host, key, self.limits.step_timeout_s)
        opening = _Opening(build)
        first_rank = 1 if self.coordinates.rank == 0 else 0
        while (groups := opening.result(self.limits.rank_poll_s)) is None:
            if self.loss is not None:
                raise EngineDead(self.loss)
            if (loss := closed_rank(self.connections, first_rank)) is not None:
                raise loss
        self._groups = list(groups.process_groups)
        self._shard, self.world = groups.shard, groups.world

    def _receive_values(self, rank: int, connection: ControlConnection) -> list[int]:
        try:
            message = connection.receive(self.limits.start_timeout_s)
        except (ConnectionLost, BadMessage) as error:
            raise rank_lost(rank, error) from None
        if isinstance(message, Failed):
            raise rank_failed(rank, message)
        if not isinstance(message, ReduceMin):
            raise EngineDead(f"rank {rank} sent {message!r:.80} instead of its values")
        return message.values

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionLost, BadMessage, RuntimeError, TimeoutError, EngineDead) as error:
            cause = self.cause_of(error)
            if self.coordinates.rank:
                report_failure(self.connections[0], error)
            self.close()
            raise EngineDead(f"rank {self.coordinates.rank} could not join the group: {cause}") from error
        except BaseException:
            self.close()
            raise


class _Opening:
    """torch's groups, built in a thread that may be abandoned when a rank is lost."""

    def __init__(self, build: Callable[[], TorchGroups]) -> None:
        self._build = build
        self._groups: TorchGroups | None = None
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="groups", daemon=True).start()

    def result(self, timeout_s: float) -> TorchGroups | None:
        """Wait for the groups; None after the timeout. Raises what building them raised."""
        self._is_over.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return self._groups

    def _run(self) -> None:
        try:
            self._groups = self._build()
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()


def _close_background(
    monitor: HeartbeatMonitor, store_connections: Sequence[ControlConnection], values: StoreValues
) -> None:
    monitor.close()
    values.close()
    for connection in store_connections:
        connection.shutdown()


def _report_loss(reference: "weakref.ref[RankGroup]", rank: int, silent_s: float) -> None:
    """Report a lost rank, from the heartbeat thread, which holds only a weak reference."""
    if (group := reference()) is not None:
        group.loss = f"rank {rank} is lost: it has sent no heartbeat for {silent_s:.3g} s"
        try:
            group.on_loss()
        finally:
            group.abort_waits()
