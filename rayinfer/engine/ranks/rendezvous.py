"""Rendezvous of an engine's ranks: rank 0 listens, the others connect and authenticate with a shared key.

The key itself is never sent: each end signs a nonce of the other's, so that what is overheard opens nothing later.
"""

import contextlib
import hmac
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import get_args

from rayinfer.engine.ranks.control_connection import ControlLine, LineLost
from rayinfer.engine.ranks.plan_codec import BadMessage
from rayinfer.engine.ranks.rendezvous_messages import Challenge, Hello, Purpose, Welcome
from rayinfer.errors import EngineDead
from rayinfer.tensor_parallel import RankCoordinates

GROUP_TIMEOUT_S = 30.0  # without a beat of another rank, after which it counts as frozen
START_TIMEOUT_S = 1800.0  # while ranks are started and read their weights, and whenever they read them again
HELLO_TIMEOUT_S = 5.0  # for a peer that has not proved that it has the key
MAX_STRANGERS = 64  # at once; one more takes the place of the oldest
MAX_HELLO_BYTES = 4096
NONCE_BYTES = 16
LOOK_ROUND_S = 0.2  # between two checks that the awaited ranks are alive
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rank 0's address, and the key that the ranks of one engine share."""

    host: str
    port: int
    key: str = field(repr=False)
    timeout_s: float = GROUP_TIMEOUT_S  # of silence; the same on every rank


@dataclass(frozen=True, slots=True)
class RankLines:
    """The connections of one rank to another."""

    commands: ControlLine  # and their answers
    beats: ControlLine
    store: ControlLine  # torch's, which rank 0 keeps


@dataclass(frozen=True, slots=True)
class Stranger:
    """A connection that has yet to answer its challenge."""

    line: ControlLine
    nonce: bytes
    deadline: float


@dataclass(frozen=True, slots=True)
class Guest:
    """A connection whose other end has proved the key."""

    line: ControlLine
    hello: Hello


class RendezvousHost:
    """Rank 0's listener, open until all ranks are there."""

    def __init__(self, host: str, timeout_s: float) -> None:
        # A port of the system's choice, taken once and kept: one that is only looked up may be gone a moment later.
        self._listener = socket.create_server((host, 0))
        port: int = self._listener.getsockname()[1]
        self.rendezvous = Rendezvous(host, port, secrets.token_hex(16), timeout_s)
        self._strangers: list[Stranger] = []  # the oldest first
        self._guests: dict[tuple[int, Purpose], Guest] = {}

    def accept(self, world_size: int, check: Callable[[], None]) -> "list[RankLines]":
        """Wait for ranks 1 to world_size - 1, in any order; `check` raises when it is no use. Raises EngineDead."""
        try:
            self._await_all(world_size, check)
            for rank in range(1, world_size):
                self._welcome(rank)
            lines = {whose: guest.line for whose, guest in self._guests.items()}
            return [RankLines(*(lines[rank, purpose] for purpose in PURPOSES)) for rank in range(1, world_size)]
        except (OSError, ValueError) as error:  # ValueError: a closed socket has no descriptor
            close_all(guest.line for guest in self._guests.values())
            raise EngineDead(f"the port for the other ranks is closed: {error}") from None
        except BaseException:
            close_all(guest.line for guest in self._guests.values())
            raise
        finally:
            close_all(stranger.line for stranger in self._strangers)

    def close(self) -> None:
        """Listen no more; connected ranks stay."""
        self._listener.close()

    def _await_all(self, world_size: int, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        next_look = 0.0
        while len(self._guests) < len(PURPOSES) * (world_size - 1):
            if (now := time.monotonic()) >= next_look:
                next_look = now + LOOK_ROUND_S
                check()
            if now > deadline:
                absent = sorted(set(range(1, world_size)) - {rank for rank, _ in self._guests})
                raise EngineDead(f"ranks {absent} did not come within {START_TIMEOUT_S:g} s")
            self._greet(world_size, max(0.0, next_look - now))

    def _greet(self, world_size: int, timeout_s: float) -> None:
        """Wait for events: read hellos, close what is overdue, challenge new connections."""
        poller = select.poll()
        for descriptor in (self._listener.fileno(), *(stranger.line.fileno() for stranger in self._strangers)):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(1000 * timeout_s)}
        for stranger in list(self._strangers):
            if stranger.line.fileno() in ready:
                self._hear(stranger, world_size)
            elif time.monotonic() > stranger.deadline:
                self._send_away(stranger)
        if self._listener.fileno() in ready:
            if len(self._strangers) == MAX_STRANGERS:
                self._send_away(self._strangers[0])
            self._challenge(ControlLine(self._listener.accept()[0]))

    def _challenge(self, line: ControlLine) -> None:
        stranger = Stranger(line, secrets.token_bytes(NONCE_BYTES), time.monotonic() + HELLO_TIMEOUT_S)
        self._strangers.append(stranger)
        try:
            line.send(Challenge(stranger.nonce), 0.0)
        except LineLost:
            self._send_away(stranger)

    def _hear(self, stranger: Stranger, world_size: int) -> None:
        try:
            hello = stranger.line.receive_now(max_bytes=MAX_HELLO_BYTES)
        except (LineLost, BadMessage):
            return self._send_away(stranger)
        if hello is None:  # the rest is to come
            return None
        if not (
            isinstance(hello, Hello)
            and hmac.compare_digest(hello.proof, _proof_of_rank(self.rendezvous.key, stranger.nonce, hello))
            and hello.world_size == world_size
            and 0 < hello.rank < world_size
            and (hello.rank, hello.purpose) not in self._guests
        ):
            return self._send_away(stranger)
        self._strangers.remove(stranger)
        self._guests[hello.rank, hello.purpose] = Guest(stranger.line, hello)
        return None

    def _send_away(self, stranger: Stranger) -> None:
        self._strangers.remove(stranger)
        stranger.line.close()

    def _welcome(self, rank: int) -> None:
        guest = self._guests[rank, "commands"]
        try:
            guest.line.send(Welcome(_proof_of_host(self.rendezvous.key, guest.hello.nonce)), HELLO_TIMEOUT_S)
        except LineLost as error:
            raise EngineDead(f"rank {rank} is lost: {error}") from None


def open_rendezvous(host: str = "127.0.0.1", *, timeout_s: float = GROUP_TIMEOUT_S) -> RendezvousHost:
    """Listen for an engine's ranks; `host` is an address of this machine that the others can reach."""
    return RendezvousHost(host, timeout_s)


def join_rendezvous(place: RankCoordinates, rendezvous: Rendezvous) -> RankLines:
    """Connect to rank 0, as another rank, and wait until all are there; raises EngineDead when rank 0 is not."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    lines: list[ControlLine] = []
    try:
        for purpose in PURPOSES:
            address = (rendezvous.host, rendezvous.port)
            lines.append(ControlLine(socket.create_connection(address, HELLO_TIMEOUT_S)))
            introduce(lines[-1], place, rendezvous, purpose, nonce)
        welcome = lines[0].receive(START_TIMEOUT_S, max_bytes=MAX_HELLO_BYTES)
        proof = _proof_of_host(rendezvous.key, nonce)
        if not (isinstance(welcome, Welcome) and hmac.compare_digest(welcome.proof, proof)):
            raise BadMessage("what is there does not know the engine's key")
    except (OSError, LineLost, BadMessage) as error:
        close_all(lines)
        raise EngineDead(f"rank 0 is not at {rendezvous.host}:{rendezvous.port}: {error}") from None
    except BaseException:
        close_all(lines)
        raise
    return RankLines(*lines)


def introduce(
    line: ControlLine, place: RankCoordinates, rendezvous: Rendezvous, purpose: Purpose, nonce: bytes
) -> None:
    """Wait for rank 0's challenge on one line, and answer it; raises LineLost, BadMessage."""
    challenge = line.receive(START_TIMEOUT_S, max_bytes=MAX_HELLO_BYTES)  # rank 0 may still be at something else
    if not isinstance(challenge, Challenge):
        raise BadMessage(f"rank 0 says {challenge!r:.80} instead of a challenge")
    unsigned = Hello(place.rank, place.world_size, purpose, nonce, b"")
    proof = _proof_of_rank(rendezvous.key, challenge.nonce, unsigned)
    line.send(Hello(place.rank, place.world_size, purpose, nonce, proof), HELLO_TIMEOUT_S)


def close_all(lines: Iterable[ControlLine]) -> None:
    """Close all of them."""
    for line in lines:
        with contextlib.suppress(OSError):
            line.close()


def _proof_of_rank(key: str, challenge: bytes, hello: Hello) -> bytes:
    signed = f"rank {hello.rank} of {hello.world_size} {hello.purpose} {hello.nonce.hex()} {challenge.hex()}"
    return hmac.digest(key.encode(), signed.encode(), "sha256")


def _proof_of_host(key: str, nonce: bytes) -> bytes:
    return hmac.digest(key.encode(), f"rank 0 {nonce.hex()}".encode(), "sha256")
