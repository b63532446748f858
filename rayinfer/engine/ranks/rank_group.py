"""The group of an engine's ranks: rendezvous, connections, heartbeats and timeouts."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch.distributed import ProcessGroup

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost
from rayinfer.engine.ranks.heartbeats import RankBeats
from rayinfer.engine.ranks.plan_codec import BadMessage, Failed
from rayinfer.engine.ranks.rank_coordinates import rank_device
from rayinfer.engine.ranks.rank_failures import RankLost, failed, first_failure, lost, rank_that_hung_up, say_last_words
from rayinfer.engine.ranks.rank_store import RankStore, StoreValues, ask_over
from rayinfer.engine.ranks.rendezvous import (
    LOOK_ROUND_S,
    START_TIMEOUT_S,
    RankLines,
    Rendezvous,
    RendezvousHost,
    close_all,
    join_rendezvous,
)
from rayinfer.engine.ranks.rendezvous_messages import Numbers
from rayinfer.engine.ranks.timed_group import TimedGroup
from rayinfer.engine.ranks.torch_groups import TorchGroups, open_groups
from rayinfer.errors import EngineDead, RayinferError
from rayinfer.tensor_parallel import RankCoordinates, Shard


class OtherRanks(Protocol):
    """Ranks 1 to n - 1, as seen by the process that started them."""

    def check(self) -> None:
        """Raise EngineDead when one of them will not come to meet the others."""
        ...

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank's process computes no more: it was stopped, or has ended."""
        ...

    def end(self, grace_s: float) -> None:
        """End all of them, from any thread; those at once that have not ended by themselves after the grace."""
        ...


class RankGroup:
    """One rank's view of all of them: rank 0 has a line to every other rank, each of those has one to rank 0.

    Groups of torch carry what models exchange; every wait in them ends after STEP_TIMEOUT_S. A hung rank is noticed
    earlier, from the first moment on: see RankBeats. Then `on_loss` is called, in a thread of its own.
    """

    def __init__(
        self,
        place: RankCoordinates,
        lines: Sequence[RankLines],
        timeout_s: float,
        device: torch.device,
        *,
        on_loss: Callable[[], None] = lambda: None,
        is_stopped: Callable[[int], bool] | None = None,
    ) -> None:
        self.place = place
        self.lines = [line.commands for line in lines]
        self.device = device
        self.loss: str | None = None  # which rank is silent
        self.was_aborted = False  # by `abort_device_waits`
        self.on_loss = on_loss
        self.everybody: ProcessGroup | None = None  # all ranks, where there are several stages
        self._share: Shard | None = None
        self._store: RankStore | None = None  # torch's groups do not keep it alive
        self._groups: list[ProcessGroup] = []
        if device.type == "cuda":
            torch.cuda.set_device(device)
        others = range(1, place.world_size) if place.rank == 0 else [0]
        beats = dict(zip(others, (line.beats for line in lines), strict=True))
        self.beats = RankBeats(beats, timeout_s, partial(_lose, weakref.ref(self)), is_stopped)
        self._store_lines = [line.store for line in lines]
        self._store_values = StoreValues()  # rank 0's
        weakref.finalize(
            self, _let_go, self.beats, self._store_lines, self._store_values
        )  # at once, where it is not closed

    @classmethod
    def host(cls, place: RankCoordinates, host: RendezvousHost, others: OtherRanks | None = None) -> "RankGroup":
        """Wait for the other ranks, as rank 0; raises EngineDead. `others` are ended as soon as one of them is lost."""
        lines = host.accept(place.world_size, others.check if others is not None else lambda: None)
        group = cls(
            place,
            lines,
            host.rendezvous.timeout_s,
            rank_device(place),
            on_loss=partial(others.end, 0.0) if others is not None else lambda: None,
            is_stopped=others.is_stopped if others is not None else None,
        )
        with group._closed_on_failure():
            group._store_values.serve(group._store_lines)
            store = RankStore(group._store_values.answer, START_TIMEOUT_S)
            group._meet(store, host.rendezvous.host, host.rendezvous.key)
        host.close()
        return group

    @classmethod
    def join(
        cls, place: RankCoordinates, rendezvous: Rendezvous, is_stopped: Callable[[int], bool] | None = None
    ) -> "RankGroup":
        """Connect to rank 0, as another rank; raises EngineDead if it is not there. `is_stopped` is of its process."""
        lines = join_rendezvous(place, rendezvous)
        try:
            device = rank_device(place)
        except BaseException as error:
            say_last_words(lines.commands, error)
            close_all([lines.commands, lines.beats, lines.store])
            raise
        group = cls(place, [lines], rendezvous.timeout_s, device, is_stopped=is_stopped)
        with group._closed_on_failure():
            store = RankStore(ask_over(lines.store), START_TIMEOUT_S)
            group._meet(store, lines.commands.own_host, rendezvous.key)
        return group

    @property
    def share(self) -> Shard:
        """This rank's share of the model."""
        assert self._share is not None, "the ranks have not met"
        return self._share

    @property
    def communication_s(self) -> float:
        """Seconds spent so far in what the tensor ranks of this stage do together."""
        tensors = self.share.group
        return tensors.seconds if isinstance(tensors, TimedGroup) else 0.0

    def agree_least(self, values: Sequence[int]) -> list[int]:
        """Return the elementwise minimum of all ranks' numbers; raises EngineDead."""
        own = list(values)
        try:
            if self.place.rank:
                self.lines[0].send(Numbers(own), START_TIMEOUT_S)
                return _numbers(0, self.lines[0])
            told = [own, *(_numbers(rank, line) for rank, line in enumerate(self.lines, start=1))]
            least = [min(column) for column in zip(*told, strict=True)]
            for line in self.lines:
                line.send(Numbers(least), START_TIMEOUT_S)
        except (LineLost, BadMessage, RankLost) as error:
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
        """Return why the group ends, given what this rank has seen of it: which rank failed first, and how."""
        if self.loss is None and self.place.rank == 0:
            cause = first_failure(error, self.lines).text
        else:
            cause = own_cause(error)
        return self.loss or cause

    def close(self) -> None:
        """Close all connections; ranks that wait for this one notice it."""
        _let_go(self.beats, self._store_lines, self._store_values)
        for line in self.lines:
            line.close()
        for group in self._groups:
            with contextlib.suppress(RuntimeError):
                group.abort() if self.device.type == "cuda" else group.shutdown()
        self._groups.clear()
        self._share = self.everybody = self._store = None

    def break_off(self) -> None:
        """End the waits for another rank, from any thread, but for those in gloo, which end with its process."""
        for line in [*self.lines, *self._store_lines]:
            line.hang_up()
        self._store_values.close()
        self.abort_device_waits()

    def abort_device_waits(self) -> None:
        """End NCCL's waits, which do not notice when another process has gone.

        What is computed then means nothing. torch's watchdog, which sees the abort too, may end this process with
        SIGABRT; TORCH_NCCL_ASYNC_ERROR_HANDLING=2 keeps it from that.
        """
        if self.device.type == "cuda":
            self.was_aborted = True
            for group in list(self._groups):
                with contextlib.suppress(RuntimeError):
                    group.abort()

    def _meet(self, store: RankStore, own_host: str, key: str) -> None:
        """Build torch's groups, and stop waiting for a rank that is lost meanwhile; raises EngineDead.

        gloo waits for ever for one that has registered, and never connects: it is left to wait in a thread.
        """
        self._store = store
        opening = _Opening(partial(open_groups, self.place, store, self.device, own_host, key))
        first_rank = 1 if self.place.rank == 0 else 0
        while (groups := opening.result(LOOK_ROUND_S)) is None:
            if self.loss is not None:
                raise EngineDead(self.loss)
            if (loss := rank_that_hung_up(self.lines, first_rank, 0.0)) is not None:
                raise loss
        self._groups = list(groups.process_groups)
        self._share, self.everybody = groups.share, groups.everybody

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (LineLost, BadMessage, RuntimeError, TimeoutError, EngineDead) as error:
            cause = self.cause_of(error)
            if self.place.rank:
                say_last_words(self.lines[0], error)
            self.close()
            raise EngineDead(f"rank {self.place.rank} could not meet the others: {cause}") from error
        except BaseException:
            self.close()
            raise


class _Opening:
    """torch's groups, built in a thread that may be left alone when a rank is lost."""

    def __init__(self, build: Callable[[], TorchGroups]) -> None:
        self._build = build
        self._groups: TorchGroups | None = None
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="groups", daemon=True).start()

    def result(self, timeout_s: float) -> TorchGroups | None:
        """Wait for the groups; raises what building them raised."""
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


def own_cause(error: BaseException) -> str:
    """Describe the failure as this rank has seen it."""
    return str(error) if isinstance(error, EngineDead) else f"{type(error).__name__}: {error}"


def _let_go(beats: RankBeats, store_lines: Sequence[ControlLine], values: StoreValues) -> None:
    beats.close()
    values.close()
    for line in store_lines:
        line.hang_up()


def _lose(reference: "weakref.ref[RankGroup]", rank: int, silent_s: float) -> None:
    """Report a lost rank, from the heartbeat thread, which holds only a weak reference."""
    if (group := reference()) is not None:
        group.loss = f"rank {rank} is lost: it has said nothing for {silent_s:.3g} s"
        try:
            group.on_loss()
        finally:
            group.break_off()


def _numbers(rank: int, line: ControlLine) -> list[int]:
    try:
        said = line.receive(START_TIMEOUT_S)
    except (LineLost, BadMessage) as error:
        raise lost(rank, error) from None
    if isinstance(said, Numbers):
        return said.values
    raise failed(rank, said) if isinstance(said, Failed) else EngineDead(f"rank {rank} says {said!r:.80}, no numbers")
