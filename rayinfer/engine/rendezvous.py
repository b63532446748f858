"""Where the ranks of one engine meet: rank 0 opens a door, and who knows the key comes in."""

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rayinfer.engine.control_line import ControlLine, LineLost
from rayinfer.engine.plan_codec import BadMessage, Hello, Welcome
from rayinfer.errors import EngineDead
from rayinfer.tensor_parallel import Place

GROUP_TIMEOUT_S = 30.0  # without a beat of another rank, after which it counts as frozen
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
    timeout_s: float = GROUP_TIMEOUT_S  # of silence; the same on every rank


@dataclass(frozen=True, slots=True)
class RankLines:
    """What one rank is connected with to another."""

    commands: ControlLine  # and their answers
    beats: ControlLine

    def welcome(self, rank: int, store_port: int) -> None:
        """Tell the other rank where torch's store listens; raises EngineDead when it has gone."""
        try:
            self.commands.send(Welcome(store_port), HELLO_TIMEOUT_S)
        except LineLost as error:
            raise EngineDead(f"rank {rank} is lost: {error}") from None


class RendezvousHost:
    """Rank 0's door; it stays open until all ranks are there."""

    def __init__(self, host: str, timeout_s: float) -> None:
        # Ports of the system's choice, taken once and kept: a port that is only looked up may be gone a moment later.
        self._door = socket.create_server((host, 0))
        self._store_door = socket.create_server((host, 0))
        self.store_port: int = self._store_door.getsockname()[1]
        port: int = self._door.getsockname()[1]
        self.rendezvous = Rendezvous(host, port, secrets.token_hex(16), timeout_s)

    def accept(self, world_size: int, check: Callable[[], None]) -> "list[RankLines]":
        """Wait for ranks 1 to world_size - 1, in any order; `check` raises when it is no use. Raises EngineDead."""
        lines: dict[tuple[int, bool], ControlLine] = {}  # by rank, and whether it is for beats
        deadline = time.monotonic() + START_TIMEOUT_S
        self._door.settimeout(LOOK_ROUND_S)
        try:
            while len(lines) < 2 * (world_size - 1):
                check()
                if time.monotonic() > deadline:
                    absent = sorted(set(range(1, world_size)) - {rank for rank, _ in lines})
                    raise EngineDead(f"ranks {absent} did not come within {START_TIMEOUT_S:g} s")
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._door.accept()
                    self._greet(ControlLine(connection), world_size, lines)
            ranks = [RankLines(lines[rank, False], lines[rank, True]) for rank in range(1, world_size)]
            for number, rank in enumerate(ranks, start=1):
                rank.welcome(number, self.store_port)
        except OSError as error:
            close_all(lines.values())
            raise EngineDead(f"the door for the other ranks is closed: {error}") from None
        except BaseException:
            close_all(lines.values())
            raise
        return ranks

    def take_store_door(self) -> int:
        """Hand over the descriptor of the socket at which torch's store is to listen."""
        return self._store_door.detach()

    def close(self) -> None:
        """Close the doors; whoever came in stays."""
        self._door.close()
        self._store_door.close()

    def _greet(self, line: ControlLine, world_size: int, lines: dict[tuple[int, bool], ControlLine]) -> None:
        with contextlib.suppress(LineLost, BadMessage):
            hello = line.receive(HELLO_TIMEOUT_S, max_bytes=MAX_HELLO_BYTES)
            if (
                isinstance(hello, Hello)
                and hmac.compare_digest(hello.key.encode(), self.rendezvous.key.encode())
                and hello.world_size == world_size
                and 0 < hello.rank < world_size
                and (hello.rank, hello.is_for_beats) not in lines
            ):
                lines[hello.rank, hello.is_for_beats] = line
                return
        line.close()


def open_rendezvous(host: str = "127.0.0.1", *, timeout_s: float = GROUP_TIMEOUT_S) -> RendezvousHost:
    """Open the door for an engine's ranks; `host` is an address of this machine that the others can reach."""
    return RendezvousHost(host, timeout_s)


def knock(place: Place, rendezvous: Rendezvous, *, is_for_beats: bool) -> ControlLine:
    """Come to rank 0's door as another rank; raises EngineDead when nobody is there."""
    try:
        line = ControlLine(socket.create_connection((rendezvous.host, rendezvous.port), HELLO_TIMEOUT_S))
        line.send(Hello(rendezvous.key, place.rank, place.world_size, is_for_beats), HELLO_TIMEOUT_S)
    except (OSError, LineLost) as error:
        raise EngineDead(f"rank 0 is not at {rendezvous.host}:{rendezvous.port}: {error}") from None
    return line


def close_all(lines: Iterable[ControlLine]) -> None:
    """Hang up on all of them."""
    for line in lines:
        line.close()
