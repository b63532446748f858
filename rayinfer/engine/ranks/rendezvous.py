"""Rendezvous of an engine's ranks: rank 0 listens, the others connect and authenticate with a shared key.

The key itself is never sent: each end signs a nonce of the other's, so a recorded handshake cannot be replayed. Between
machines the connections use TLS: the ranks get the certificate together with the key, and trust it alone.
"""

import hmac
import importlib
import ipaddress
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection, close_all
from rayinfer.engine.ranks.rank_messages import Challenge, Hello, Purpose, Welcome
from rayinfer.errors import EngineDead
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates
from rayinfer.transport.engine_certificate import EngineCertificate, client_context
from rayinfer.wire import MAX_HELLO_BYTES, BadMessage, sign

MAX_PENDING = 64  # connections that have not authenticated; one more replaces the oldest
NONCE_BYTES = 16
LOOPBACK = "127.0.0.1"
SELF_SIGNED = "rayinfer.transport.self_signed"  # imported beyond loopback alone: it loads slowly
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rank 0's address, and the key that the ranks of one engine share."""

    host: str
    port: int
    key: str = field(repr=False)
    timeout_s: float = DEFAULT_LIMITS.group_timeout_s  # without a heartbeat; the same on every rank
    certificate: str | None = None  # PEM, of rank 0's TLS; None on loopback, where connections are plain


@dataclass(frozen=True, slots=True)
class RankConnections:
    """The connections of one rank to another."""

    commands: ControlConnection  # and their replies
    heartbeats: ControlConnection
    store: ControlConnection  # torch's, which rank 0 keeps

    def close(self) -> None:
        """Close all three."""
        close_all([self.commands, self.heartbeats, self.store])


@dataclass(frozen=True, slots=True)
class PendingConnection:
    """A connection that has yet to reply to its challenge."""

    connection: ControlConnection
    nonce: bytes | None  # None until its TLS handshake is complete
    deadline: float


@dataclass(frozen=True, slots=True)
class AuthenticatedConnection:
    """A connection whose other end has proved the key."""

    connection: ControlConnection
    hello: Hello


class RendezvousHost:
    """Rank 0's listener, open until all ranks are connected; `host` is loopback where they share its machine."""

    def __init__(
        self,
        host: str = LOOPBACK,
        *,
        timeout_s: float = DEFAULT_LIMITS.group_timeout_s,
        limits: LivenessLimits = DEFAULT_LIMITS,
        has_tls: bool | None = None,  # default: beyond loopback
    ) -> None:
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            raise ValueError(f"ranks meet at one address of a machine, got {host}, which means all of them")
        certificate: EngineCertificate | None = None
        if not address.is_loopback if has_tls is None else has_tls:
            certificate = importlib.import_module(SELF_SIGNED).make_certificate()
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = certificate.server_context()
            self._tls.num_tickets = 0  # data that is no message; sessions are not resumed
        # A port of the system's choice, taken once and kept: one that is only looked up may be gone a moment later.
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        port: int = self._listener.getsockname()[1]
        public = None if certificate is None else certificate.certificate
        self.rendezvous = Rendezvous(host, port, secrets.token_hex(16), timeout_s, public)
        self.limits = limits
        self._pending: list[PendingConnection] = []  # the oldest first
        self._authenticated: dict[tuple[int, Purpose], AuthenticatedConnection] = {}

    def accept(self, world_size: int, check: Callable[[], None]) -> list[RankConnections]:
        """Wait for ranks 1 to world_size - 1, in any order; `check` raises if one will not come. Raises EngineDead."""
        try:
            self._await_all(world_size, check)
            for rank in range(1, world_size):
                self._welcome(rank)
            by_rank = {key: each.connection for key, each in self._authenticated.items()}
            return [RankConnections(*(by_rank[rank, purpose] for purpose in PURPOSES)) for rank in range(1, world_size)]
        except (OSError, ValueError) as error:  # ValueError: a closed socket has no descriptor
            close_all(each.connection for each in self._authenticated.values())
            raise EngineDead(f"the port for the other ranks is closed: {error}") from None
        except BaseException:
            close_all(each.connection for each in self._authenticated.values())
            raise
        finally:
            close_all(pending.connection for pending in self._pending)

    def close(self) -> None:
        """Close the listener; connected ranks stay."""
        self._listener.close()

    def _await_all(self, world_size: int, check: Callable[[], None]) -> None:
        start_timeout_s = self.limits.start_timeout_s
        deadline = time.monotonic() + start_timeout_s
        next_check = 0.0
        while len(self._authenticated) < len(PURPOSES) * (world_size - 1):
            if (now := time.monotonic()) >= next_check:
                next_check = now + self.limits.rank_poll_s
                check()
            if now > deadline:
                absent = sorted(set(range(1, world_size)) - {rank for rank, _ in self._authenticated})
                raise EngineDead(f"ranks {absent} did not connect within {start_timeout_s:g} s")
            self._poll(world_size, max(0.0, next_check - now))

    def _poll(self, world_size: int, timeout_s: float) -> None:
        """Wait for events: read hellos, close overdue connections, challenge new ones."""
        poller = select.poll()
        for descriptor in (self._listener.fileno(), *(pending.connection.fileno() for pending in self._pending)):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(1000 * timeout_s)}
        for pending in list(self._pending):
            if pending.connection.fileno() in ready:
                self._advance(pending, world_size)
            elif time.monotonic() > pending.deadline:
                self._reject(pending)
        if self._listener.fileno() in ready:
            if len(self._pending) == MAX_PENDING:
                self._reject(self._pending[0])
            accepted = self._listener.accept()[0]
            if self._tls is not None:
                accepted = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            deadline = time.monotonic() + self.limits.rank_hello_timeout_s
            pending = PendingConnection(ControlConnection(accepted), None, deadline)
            self._pending.append(pending)
            if self._tls is None:
                self._challenge(pending)

    def _advance(self, pending: PendingConnection, world_size: int) -> None:
        """Take the next step of a connection that has sent something: its TLS handshake, or its hello."""
        if pending.nonce is not None:
            return self._read_hello(pending, pending.nonce, world_size)
        try:
            if pending.connection.continue_handshake():
                self._challenge(pending)
        except ConnectionLost:
            self._reject(pending)
        return None

    def _challenge(self, pending: PendingConnection) -> None:
        challenged = replace(pending, nonce=secrets.token_bytes(NONCE_BYTES))
        self._pending[self._pending.index(pending)] = challenged
        try:
            challenged.connection.send(Challenge(challenged.nonce or b""), 0.0)
        except ConnectionLost:
            self._reject(challenged)

    def _read_hello(self, pending: PendingConnection, nonce: bytes, world_size: int) -> None:
        try:
            hello = pending.connection.receive_nowait(max_bytes=MAX_HELLO_BYTES)
        except (ConnectionLost, BadMessage):
            return self._reject(pending)
        if hello is None:  # the rest is to come
            return None
        if not (
            isinstance(hello, Hello)
            and hmac.compare_digest(hello.proof, _proof_of_rank(self.rendezvous.key, nonce, hello))
            and hello.world_size == world_size
            and 0 < hello.rank < world_size
            and (hello.rank, hello.purpose) not in self._authenticated
        ):
            return self._reject(pending)
        self._pending.remove(pending)
        self._authenticated[hello.rank, hello.purpose] = AuthenticatedConnection(pending.connection, hello)
        return None

    def _reject(self, pending: PendingConnection) -> None:
        self._pending.remove(pending)
        pending.connection.close()

    def _welcome(self, rank: int) -> None:
        commands = self._authenticated[rank, "commands"]
        welcome = Welcome(_proof_of_host(self.rendezvous.key, commands.hello.nonce))
        try:
            commands.connection.send(welcome, self.limits.rank_hello_timeout_s)
        except ConnectionLost as error:
            raise EngineDead(f"rank {rank} is lost: {error}") from None


def join_rendezvous(
    coordinates: RankCoordinates, rendezvous: Rendezvous, limits: LivenessLimits = DEFAULT_LIMITS
) -> RankConnections:
    """Connect to rank 0, as another rank, and wait until all are connected; raises EngineDead when rank 0 is gone."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    connections: list[ControlConnection] = []
    try:
        for purpose in PURPOSES:
            connections.append(connect(rendezvous, limits))
            authenticate(connections[-1], coordinates, rendezvous.key, purpose, nonce, limits)
        welcome = connections[0].receive(limits.start_timeout_s, max_bytes=MAX_HELLO_BYTES)
        proof = _proof_of_host(rendezvous.key, nonce)
        if not (isinstance(welcome, Welcome) and hmac.compare_digest(welcome.proof, proof)):
            raise BadMessage("its listener does not have the engine's key")
    except (OSError, ConnectionLost, BadMessage) as error:
        close_all(connections)
        raise EngineDead(f"rank 0 is not at {rendezvous.host}:{rendezvous.port}: {error}") from None
    except BaseException:
        close_all(connections)
        raise
    return RankConnections(*connections)


def connect(rendezvous: Rendezvous, limits: LivenessLimits = DEFAULT_LIMITS) -> ControlConnection:
    """Open a connection to rank 0, with its certificate's TLS if it has one; raises OSError."""
    connected = socket.create_connection((rendezvous.host, rendezvous.port), limits.rank_hello_timeout_s)
    if rendezvous.certificate is None:
        return ControlConnection(connected)
    connected.settimeout(limits.start_timeout_s)  # rank 0 may still be busy
    return ControlConnection(client_context(rendezvous.certificate).wrap_socket(connected))


def authenticate(
    connection: ControlConnection,
    coordinates: RankCoordinates,
    key: str,
    purpose: Purpose,
    nonce: bytes,
    limits: LivenessLimits = DEFAULT_LIMITS,
) -> None:
    """Wait for rank 0's challenge on one connection, and sign it; raises ConnectionLost, BadMessage."""
    challenge = connection.receive(limits.start_timeout_s, max_bytes=MAX_HELLO_BYTES)  # rank 0 may still be busy
    if not isinstance(challenge, Challenge):
        raise BadMessage(f"rank 0 sent {challenge!r:.80} instead of a challenge")
    unsigned = Hello(coordinates.rank, coordinates.world_size, purpose, nonce, b"")
    proof = _proof_of_rank(key, challenge.nonce, unsigned)
    hello = Hello(coordinates.rank, coordinates.world_size, purpose, nonce, proof)
    connection.send(hello, limits.rank_hello_timeout_s)


def _proof_of_rank(key: str, challenge: bytes, hello: Hello) -> bytes:
    text = f"rank {hello.rank} of {hello.world_size} {hello.purpose} {hello.nonce.hex()} {challenge.hex()}"
    return sign(key, text)


def _proof_of_host(key: str, nonce: bytes) -> bytes:
    return sign(key, f"rank 0 {nonce.hex()}")
