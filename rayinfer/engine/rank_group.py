"""The ranks of one engine: how they find each other, what they talk over, and how long they wait for each other."""

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore  # type: ignore[attr-defined]

from rayinfer.config import EngineConfig
from rayinfer.engine.control_line import ControlLine, LineLost
from rayinfer.engine.plan_codec import BadMessage, Failed, Hello, Numbers, Welcome
from rayinfer.engine.timed_group import TimedGroup
from rayinfer.errors import ConfigError, EngineDead
from rayinfer.tensor_parallel import Alone, Place, Share, TensorGroup, TorchGroup

GROUP_TIMEOUT_S = 30.0  # without a word from another rank, while all of them should answer at once
START_TIMEOUT_S = 1800.0  # while ranks are started and read their weights, and whenever they read them again
HELLO_TIMEOUT_S = 5.0  # for somebody who has not shown the key yet
MAX_HELLO_BYTES = 4096
LOOK_ROUND_S = 0.2  # between two looks at whether those who are awaited still live


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one engine meet rank 0, and the word by which it knows them."""

    host: str
    port: int
    key: str
    timeout_s: float = GROUP_TIMEOUT_S  # see GROUP_TIMEOUT_S; the same on every rank


class RendezvousHost:
    """Rank 0's door; it stays open until all ranks are there."""

    def __init__(self, host: str, timeout_s: float) -> None:
        # Ports of the system's choice, taken once and kept: a port that is only looked up may be gone a moment later.
        self._door = socket.create_server((host, 0))
        self._store_door = socket.create_server((host, 0))
        self.store_port: int = self._store_door.getsockname()[1]
        port: int = self._door.getsockname()[1]
        self.rendezvous = Rendezvous(host, port, secrets.token_hex(16), timeout_s)

    def accept(self, world_size: int, check: Callable[[], None]) -> list[ControlLine]:
        """Wait for ranks 1 to world_size - 1, in any order; `check` raises when it is no use. Raises EngineDead."""
        lines: dict[int, ControlLine] = {}
        deadline = time.monotonic() + START_TIMEOUT_S
        self._door.settimeout(LOOK_ROUND_S)
        try:
            while len(lines) < world_size - 1:
                check()
                if time.monotonic() > deadline:
                    absent = sorted(set(range(1, world_size)) - lines.keys())
                    raise EngineDead(f"ranks {absent} did not come within {START_TIMEOUT_S:g} s")
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._door.accept()
                    self._greet(ControlLine(connection), world_size, lines)
        except OSError as error:
            _close(lines.values())
            raise EngineDead(f"the door for the other ranks is closed: {error}") from None
        except BaseException:
            _close(lines.values())
            raise
        for line in lines.values():
            line.send(Welcome(self.store_port), HELLO_TIMEOUT_S)
        return [lines[rank] for rank in sorted(lines)]

    def take_store_door(self) -> int:
        """Hand over the descriptor of the socket at which torch's store is to listen."""
        return self._store_door.detach()

    def close(self) -> None:
        """Close the doors; whoever came in stays."""
        self._door.close()
        self._store_door.close()

    def _greet(self, line: ControlLine, world_size: int, lines: dict[int, ControlLine]) -> None:
        with contextlib.suppress(LineLost, BadMessage):
            hello = line.receive(HELLO_TIMEOUT_S, max_bytes=MAX_HELLO_BYTES)
            if (
                isinstance(hello, Hello)
                and hmac.compare_digest(hello.key.encode(), self.rendezvous.key.encode())
                and hello.world_size == world_size
                and 0 < hello.rank < world_size
                and hello.rank not in lines
            ):
                lines[hello.rank] = line
                return
        line.close()


def open_rendezvous(host: str = "127.0.0.1", *, timeout_s: float = GROUP_TIMEOUT_S) -> RendezvousHost:
    """Open the door for an engine's ranks; `host` is an address of this machine that the others can reach."""
    return RendezvousHost(host, timeout_s)


class RankGroup:
    """One rank's view of all of them: rank 0 has a line to every other rank, each of those has one to rank 0.

    Groups of torch carry what models exchange; every wait in them ends after `timeout_s`.
    """

    def __init__(self, place: Place, lines: Sequence[ControlLine], timeout_s: float, device: torch.device) -> None:
        self.place = place
        self.lines = list(lines)
        self.timeout_s = timeout_s
        self.device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.everybody: ProcessGroup | None = None  # all ranks, where there are several stages
        self._store: TCPStore | None = None
        self._share: Share | None = None
        self._groups: list[ProcessGroup] = []

    @classmethod
    def host(cls, place: Place, host: RendezvousHost, check: Callable[[], None] = lambda: None) -> "RankGroup":
        """Wait for the other ranks, as rank 0; raises EngineDead, or what `check` raises when they will not come."""
        group = cls(place, host.accept(place.world_size, check), host.rendezvous.timeout_s, rank_device(place))
        with group._closed_on_failure():
            group._meet(host.rendezvous, host.store_port, host.rendezvous.host, listen_fd=host.take_store_door())
        host.close()
        return group

    @classmethod
    def join(cls, place: Place, rendezvous: Rendezvous, timeout_s: float = START_TIMEOUT_S) -> "RankGroup":
        """Come to rank 0, as any other; raises EngineDead when it is not there within the time."""
        try:
            line = ControlLine(socket.create_connection((rendezvous.host, rendezvous.port), HELLO_TIMEOUT_S))
        except OSError as error:
            raise EngineDead(f"rank 0 is not at {rendezvous.host}:{rendezvous.port}: {error}") from None
        group = cls(place, [line], rendezvous.timeout_s, rank_device(place))
        with group._closed_on_failure():
            line.send(Hello(rendezvous.key, place.rank, place.world_size), HELLO_TIMEOUT_S)
            welcome = line.receive(timeout_s)
            if not isinstance(welcome, Welcome):
                raise BadMessage(f"rank 0 says {welcome!r:.80} instead of welcome")
            group._meet(rendezvous, welcome.store_port, line.own_host)
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
                self.lines[0].send(Numbers(own), self.timeout_s)
                return _numbers(self.lines[0])
            told = [own, *map(_numbers, self.lines)]
            least = [min(column) for column in zip(*told, strict=True)]
            for line in self.lines:
                line.send(Numbers(least), self.timeout_s)
        except (LineLost, BadMessage) as error:
            raise EngineDead(f"another rank is lost while models are loaded: {error}") from None
        return least

    def close(self) -> None:
        """Hang up on everybody; whoever waits for this rank hears of it."""
        for line in self.lines:
            line.close()
        for group in self._groups:
            with contextlib.suppress(RuntimeError):
                group.abort() if self.device.type == "cuda" else group.shutdown()
        self._groups.clear()
        self._share = self.everybody = self._store = None

    def _meet(self, rendezvous: Rendezvous, store_port: int, own_host: str, listen_fd: int | None = None) -> None:
        """Build torch's groups: one for each stage's tensor ranks, and one of all ranks for what stages pass on."""
        self._store = TCPStore(
            rendezvous.host,
            store_port,
            is_master=listen_fd is not None,
            timeout=timedelta(seconds=START_TIMEOUT_S),
            wait_for_workers=False,
            master_listen_fd=listen_fd,
        )
        place, store = self.place, PrefixStore(rendezvous.key, self._store)
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
        timeout = timedelta(seconds=self.timeout_s)
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
            raise EngineDead(f"rank {self.place.rank} could not meet the others: {error}") from error
        except BaseException:
            self.close()
            raise


def place_of(config: EngineConfig, rank: int) -> Place:
    """Where a rank stands among those that the settings ask for."""
    return Place(rank, config.tensor_parallel_size, config.pipeline_parallel_size)


def rank_device(place: Place) -> torch.device:
    """What this rank computes on; ranks that see the same GPUs take one each."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if 1 < num_devices < place.world_size:
        raise ConfigError(f"{place.world_size} ranks need as many GPUs, and there are {num_devices}")
    return torch.device("cuda", place.rank % num_devices)


def _close(lines: Iterable[ControlLine]) -> None:
    for line in lines:
        line.close()


def _numbers(line: ControlLine) -> list[int]:
    said = line.receive(START_TIMEOUT_S)
    if isinstance(said, Numbers):
        return said.values
    raise EngineDead(said.reason if isinstance(said, Failed) else f"another rank says {said!r:.80} instead of numbers")
