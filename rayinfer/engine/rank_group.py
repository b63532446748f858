"""The ranks of one engine: how they find each other, what they talk over, and how long they wait for each other."""

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore  # type: ignore[attr-defined]

from rayinfer.engine.control_line import ControlLine, LineLost
from rayinfer.engine.places import rank_device
from rayinfer.engine.plan_codec import BadMessage, Failed, Numbers, Welcome
from rayinfer.engine.rank_beats import RankBeats
from rayinfer.engine.rendezvous import (
    START_TIMEOUT_S,
    RankLines,
    Rendezvous,
    RendezvousHost,
    close_all,
    knock,
)
from rayinfer.engine.timed_group import TimedGroup
from rayinfer.errors import EngineDead, RayinferError
from rayinfer.tensor_parallel import Alone, Place, Share, TensorGroup, TorchGroup

STEP_TIMEOUT_S = 1800.0  # for what ranks that live compute in one step: no fault of one may hold all for ever
LAST_WORDS_S = 0.5  # for a rank that is going to say why it ends


class OtherRanks(Protocol):
    """Ranks 1 to n - 1 as whoever started them sees them."""

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

    Groups of torch carry what models exchange; every wait in them ends after STEP_TIMEOUT_S. Who is frozen is noticed
    earlier, from the first moment on: see RankBeats. Then `on_loss` is called, in a thread of its own.
    """

    def __init__(
        self,
        place: Place,
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
        self._served_store: TCPStore | None = None  # rank 0's alone: without it nobody waits for what is in the store
        self._share: Share | None = None
        self._groups: list[ProcessGroup] = []
        if device.type == "cuda":
            torch.cuda.set_device(device)
        others = range(1, place.world_size) if place.rank == 0 else [0]
        beats = dict(zip(others, (line.beats for line in lines), strict=True))
        self.beats = RankBeats(beats, timeout_s, partial(_lose, weakref.ref(self)), is_stopped)
        weakref.finalize(self, self.beats.close)  # at once, where nobody closes it

    @classmethod
    def host(cls, place: Place, host: RendezvousHost, others: OtherRanks | None = None) -> "RankGroup":
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
            group._meet(host.rendezvous, host.store_port, host.rendezvous.host, listen_fd=host.take_store_door())
        host.close()
        return group

    @classmethod
    def join(cls, place: Place, rendezvous: Rendezvous, is_stopped: Callable[[int], bool] | None = None) -> "RankGroup":
        """Come to rank 0, as any other; raises EngineDead when it is not there. `is_stopped` tells of its process."""
        commands = knock(place, rendezvous, is_for_beats=False)
        beats = knock(place, rendezvous, is_for_beats=True)
        try:
            welcome = commands.receive(START_TIMEOUT_S)
            if not isinstance(welcome, Welcome):
                raise BadMessage(f"rank 0 says {welcome!r:.80} instead of welcome")
            device = rank_device(place)
        except (LineLost, BadMessage) as error:
            close_all([commands, beats])
            raise EngineDead(f"rank {place.rank} could not meet the others: {error}") from error
        except BaseException:
            close_all([commands, beats])
            raise
        group = cls(place, [RankLines(commands, beats)], rendezvous.timeout_s, device, is_stopped=is_stopped)
        with group._closed_on_failure():
            group._meet(rendezvous, welcome.store_port, commands.own_host)
        return group

    @property
    def share(self) -> Share:
        """This rank's share of the model."""
        assert self._share is not None, "the ranks have not met"
        return self._share

    @property
    def communication_s(self) -> float:
        """Seconds spent so far in what the tensor ranks of this stage do together."""
        tensors = self.share.group
        return tensors.seconds if isinstance(tensors, TimedGroup) else 0.0

    def agree_least(self, values: Sequence[int]) -> list[int]:
        """Tell all ranks these numbers, and return the least that any of them has told of each; raises EngineDead."""
        own = list(values)
        try:
            if self.place.rank:
                self.lines[0].send(Numbers(own), START_TIMEOUT_S)
                return _numbers(self.lines[0])
            told = [own, *map(_numbers, self.lines)]
            least = [min(column) for column in zip(*told, strict=True)]
            for line in self.lines:
                line.send(Numbers(least), START_TIMEOUT_S)
        except (LineLost, BadMessage) as error:
            raise EngineDead(f"another rank is lost while models are loaded: {self.loss or error}") from None
        return least

    @contextlib.contextmanager
    def explained_failures(self) -> Iterator[None]:
        """Raise EngineDead with what another rank has said of its end, in place of what this one has seen of it."""
        try:
            yield
            if self.was_aborted:
                raise EngineDead(f"a rank of the engine failed: {self.loss}")
        except RayinferError:
            raise
        except Exception as error:
            time.sleep(LAST_WORDS_S)
            if (reason := self.loss or self._last_words()) is None:
                raise
            raise EngineDead(f"a rank of the engine failed: {reason}") from error

    def close(self) -> None:
        """Hang up on everybody; whoever waits for this rank hears of it."""
        self.beats.close()
        for line in self.lines:
            line.close()
        for group in self._groups:
            with contextlib.suppress(RuntimeError):
                group.abort() if self.device.type == "cuda" else group.shutdown()
        self._groups.clear()
        self._share = self.everybody = self._served_store = None

    def break_off(self) -> None:
        """End the waits for another rank, from any thread, but for those in gloo, which end with its process."""
        for line in self.lines:
            line.hang_up()
        self._served_store = None
        self.abort_device_waits()

    def abort_device_waits(self) -> None:
        """End what NCCL waits for, which is not told when another process has gone.

        What is computed then means nothing. torch's watchdog, which sees the abort too, may end this process with
        SIGABRT; TORCH_NCCL_ASYNC_ERROR_HANDLING=2 keeps it from that.
        """
        if self.device.type == "cuda":
            self.was_aborted = True
            for group in list(self._groups):
                with contextlib.suppress(RuntimeError):
                    group.abort()

    def _meet(self, rendezvous: Rendezvous, store_port: int, own_host: str, listen_fd: int | None = None) -> None:
        """Build torch's groups: one for each stage's tensor ranks, and one of all ranks for what stages pass on."""
        open_store = partial(
            TCPStore, rendezvous.host, store_port, timeout=timedelta(seconds=START_TIMEOUT_S), wait_for_workers=False
        )
        if listen_fd is not None:
            self._served_store = open_store(is_master=True, master_listen_fd=listen_fd)
        # Another connection, also for rank 0: groups keep theirs, and with it they would keep the store itself.
        place, store = self.place, PrefixStore(rendezvous.key, open_store(is_master=False))
        if place.pipeline_parallel_size > 1:
            everybody = PrefixStore("all", store)
            self.everybody = self._open_group(everybody, place.rank, place.world_size, own_host)
        tensors: TensorGroup = Alone()
        if place.tensor_parallel_size > 1:
            stage = PrefixStore(f"stage{place.stage}", store)
            size = place.tensor_parallel_size
            tensors = TimedGroup(TorchGroup(self._open_group(stage, place.tensor_rank, size, own_host)))
        self._share = Share(place, tensors)

    def _open_group(self, store: Store, rank: int, size: int, own_host: str) -> ProcessGroup:
        timeout = timedelta(seconds=STEP_TIMEOUT_S)
        group: ProcessGroup
        if self.device.type == "cuda":
            options: Any = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            group = dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[assignment]
        else:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = timeout
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_host)]
            group = dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[assignment]
        self._groups.append(group)
        return group

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (LineLost, BadMessage, RuntimeError) as error:
            self.close()
            raise EngineDead(f"rank {self.place.rank} could not meet the others: {self.loss or error}") from error
        except BaseException:
            self.close()
            raise

    def _last_words(self) -> str | None:
        """Which rank has said that it failed, and why; or else has gone."""
        gone: str | None = None
        for rank, line in enumerate(self.lines, start=1):
            try:
                while line.has_unread:
                    if isinstance(said := line.receive(LAST_WORDS_S), Failed):
                        return f"rank {rank} failed: {said.reason}"
            except (LineLost, BadMessage) as error:
                gone = gone or f"rank {rank} is lost: {error}"
        return gone


def _lose(reference: "weakref.ref[RankGroup]", rank: int, silent_s: float) -> None:
    """Called by the thread that beats, which keeps no group alive that nobody else has."""
    if (group := reference()) is not None:
        group.loss = f"rank {rank} is lost: it has said nothing for {silent_s:.3g} s"
        try:
            group.on_loss()
        finally:
            group.break_off()


def _numbers(line: ControlLine) -> list[int]:
    said = line.receive(START_TIMEOUT_S)
    if isinstance(said, Numbers):
        return said.values
    raise EngineDead(said.reason if isinstance(said, Failed) else f"another rank says {said!r:.80} instead of numbers")
