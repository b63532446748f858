"""Authentication at the rendezvous: ranks with the key, each once, however many other clients connect."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from rayinfer import wire
from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection, close_all
from rayinfer.engine.ranks.rank_messages import Challenge, Failed, Hello
from rayinfer.engine.ranks.rendezvous import MAX_PENDING, Rendezvous, RendezvousHost, authenticate, join_rendezvous
from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates

RANK_1 = RankCoordinates(1, 2, 1)
SOON_S = 10.0


@contextmanager
def accepting_host(hello_timeout_s):
    """Rank 0's listener, the thread that accepts, and what it gets."""
    host = RendezvousHost(limits=LivenessLimits(rank_hello_timeout_s=hello_timeout_s))
    accepted = []
    thread = threading.Thread(target=lambda: accepted.extend(host.accept(2, lambda: None)), daemon=True)
    thread.start()
    yield host, thread
    thread.join(SOON_S)
    assert not thread.is_alive()
    for connections in accepted:
        connections.close()
    host.close()


@pytest.fixture
def accepting():
    with accepting_host(hello_timeout_s=60.0) as accepting:
        yield accepting


@pytest.fixture
def host(accepting):
    return accepting[0]


def connect(host):
    return ControlConnection(socket.create_connection((host.rendezvous.host, host.rendezvous.port), SOON_S))


def assert_rejected(connection):
    with pytest.raises(ConnectionLost, match="closed"):
        connection.receive(SOON_S)
    connection.close()


def join(host):
    join_rendezvous(RANK_1, host.rendezvous).close()


def reply_to_challenge(connection, coordinates, key, purpose="commands"):
    authenticate(connection, coordinates, key, purpose, b"nonce")


def test_silent_clients_delay_no_rank(host):
    clients = [connect(host) for _ in range(100)]
    started = time.monotonic()
    join(host)
    assert time.monotonic() - started < 4.0
    close_all(clients)


def test_a_silent_client_is_rejected_after_the_timeout():
    with accepting_host(hello_timeout_s=0.1) as (host, _):
        client = connect(host)
        assert isinstance(client.receive(SOON_S), Challenge)
        assert_rejected(client)
        join(host)


def test_the_oldest_clients_beyond_the_limit_are_rejected(host):
    clients = [connect(host) for _ in range(2 * MAX_PENDING)]
    for client in clients[:MAX_PENDING]:
        assert isinstance(client.receive(SOON_S), Challenge)
        assert_rejected(client)
    join(host)
    close_all(clients)


def test_half_a_message_delays_no_rank(host):
    with socket.create_connection((host.rendezvous.host, host.rendezvous.port), SOON_S) as client:
        client.sendall(wire.encode(Failed("half of this"))[:6])
        started = time.monotonic()
        join(host)
        assert time.monotonic() - started < 4.0


@pytest.mark.parametrize(
    ("coordinates", "key"),
    [
        (RANK_1, "another key"),
        (RankCoordinates(2, 3, 1), None),
        (RankCoordinates(0, 2, 1), None),
        (RankCoordinates(1, 4, 1), None),
    ],
)
def test_clients_without_the_key_or_as_another_rank_are_rejected(coordinates, key, host):
    client = connect(host)
    reply_to_challenge(client, coordinates, key or host.rendezvous.key)
    assert_rejected(client)
    join(host)


def test_any_other_message_is_rejected(host):
    client = connect(host)
    client.send(Failed("no hello at all"), SOON_S)
    assert isinstance(client.receive(SOON_S), Challenge)
    assert_rejected(client)
    join(host)


def test_no_rank_is_accepted_twice(accepting):
    host, thread = accepting
    first, second, *others = (connect(host) for _ in range(4))
    reply_to_challenge(first, RANK_1, host.rendezvous.key, "heartbeats")
    reply_to_challenge(second, RANK_1, host.rendezvous.key, "heartbeats")
    assert_rejected(second)
    for client, purpose in zip(others, ("commands", "store"), strict=True):
        reply_to_challenge(client, RANK_1, host.rendezvous.key, purpose)
    thread.join(SOON_S)
    close_all([first, *others])


class RecordingProxy:
    """Proxy between a rank and rank 0 that records the data of both."""

    def __init__(self, host):
        self.recorded = bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.rendezvous = Rendezvous("127.0.0.1", self.listener.getsockname()[1], host.rendezvous.key)
        self.target = (host.rendezvous.host, host.rendezvous.port)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.target)
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source, target):
        try:
            while data := source.recv(4096):
                self.recorded += data
                target.sendall(data)
        except OSError:
            pass
        target.close()


def test_the_key_is_never_sent(host):
    proxy = RecordingProxy(host)
    connections = join_rendezvous(RANK_1, proxy.rendezvous)
    assert b"hello" in proxy.recorded
    assert host.rendezvous.key.encode() not in proxy.recorded
    assert bytes.fromhex(host.rendezvous.key) not in proxy.recorded
    assert host.rendezvous.key not in repr(host.rendezvous)
    connections.close()
    proxy.listener.close()


class RecordingConnection:
    """A connection that keeps its hello instead of sending it."""

    def __init__(self, connection):
        self.receive = connection.receive
        self.sent = []

    def send(self, message, timeout_s):
        self.sent.append(message)


def test_a_recorded_hello_cannot_be_replayed(host):
    recorded, replaying = connect(host), connect(host)
    recording = RecordingConnection(recorded)
    reply_to_challenge(recording, RANK_1, host.rendezvous.key)
    assert isinstance(replaying.receive(SOON_S), Challenge)
    replaying.send(recording.sent[0], SOON_S)
    assert_rejected(replaying)
    recorded.close()
    join(host)


def test_a_rank_joins_no_host_without_the_key():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose_as_rank_0():
            accepted = []
            for _ in range(3):
                accepted.append(ControlConnection(listener.accept()[0]))
                accepted[-1].send(Challenge(b"nonce"), SOON_S)
                assert isinstance(accepted[-1].receive(SOON_S), Hello)
            accepted[0].send(Challenge(b"welcome"), SOON_S)

        threading.Thread(target=pose_as_rank_0, daemon=True).start()
        with pytest.raises(EngineDead, match="does not have the engine's key"):
            join_rendezvous(RANK_1, Rendezvous(*listener.getsockname(), "key"))
