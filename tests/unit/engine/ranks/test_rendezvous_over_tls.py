"""Rendezvous between machines: TLS with rank 0's own certificate, and the same authentication within it."""

import socket
import threading
from contextlib import contextmanager

import pytest
import torch

from rayinfer.engine.ranks.control_connection import ConnectionLost, close_all
from rayinfer.engine.ranks.rank_group import RankGroup
from rayinfer.engine.ranks.rank_messages import Challenge, Failed
from rayinfer.engine.ranks.rendezvous import Rendezvous, RendezvousHost, authenticate, connect, join_rendezvous
from rayinfer.errors import EngineDead
from rayinfer.liveness import LivenessLimits
from rayinfer.tensor_parallel import RankCoordinates
from rayinfer.transport.self_signed import make_certificate

RANK_1 = RankCoordinates(1, 2, 1)
SOON_S = 10.0


@contextmanager
def accepting_host(hello_timeout_s=60.0):
    """Rank 0's listener, and what it accepts in a thread."""
    host = RendezvousHost(limits=LivenessLimits(rank_hello_timeout_s=hello_timeout_s), has_tls=True)
    accepted = []
    thread = threading.Thread(target=lambda: accepted.extend(host.accept(2, lambda: None)), daemon=True)
    thread.start()
    yield host, accepted, thread
    thread.join(SOON_S)
    assert not thread.is_alive()
    for connections in accepted:
        connections.close()
    host.close()


def run_in_threads(*actions):
    results = [None] * len(actions)

    def run(index):
        results[index] = actions[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_a_group_over_tls_computes_like_any_other():
    host = RendezvousHost(timeout_s=20.0, has_tls=True)

    def run(rank):
        coordinates = RankCoordinates(rank, 2, 1)
        group = RankGroup.join(coordinates, host.rendezvous) if rank else RankGroup.host(coordinates, host)
        try:
            least = group.reduce_min([10 + rank, 20 - rank])
            return least, group.shard.group.all_reduce(torch.tensor([float(10**rank)])).item()
        finally:
            group.close()

    assert run_in_threads(lambda: run(0), lambda: run(1)) == [([10, 19], 11.0)] * 2


def test_long_messages_cross_each_other_over_tls():
    with accepting_host() as (host, accepted, thread):
        near = join_rendezvous(RANK_1, host.rendezvous)
        thread.join(SOON_S)
        (far,) = accepted
        text = "long" * 2_000_000  # both ends send more than sockets buffer

        def exchange(connection):
            connection.send(Failed(text), SOON_S)
            return connection.receive(SOON_S).reason == text

        assert run_in_threads(lambda: exchange(near.commands), lambda: exchange(far.commands)) == [True, True]
        assert not near.commands.has_unread
        far.commands.send(Failed("short"), SOON_S)
        assert near.commands.receive(SOON_S).reason == "short"
        near.close()
        with pytest.raises(ConnectionLost):
            far.commands.receive(SOON_S)


def test_silent_clients_and_plain_ones_delay_no_rank():
    with accepting_host() as (host, _, _):
        address = (host.rendezvous.host, host.rendezvous.port)
        clients = [socket.create_connection(address, SOON_S) for _ in range(20)]
        for client in clients[:10]:
            client.sendall(b"no handshake")
        join_rendezvous(RANK_1, host.rendezvous).close()
        for client in clients:
            client.close()


def test_an_overdue_handshake_is_rejected():
    with accepting_host(hello_timeout_s=0.1) as (host, _, _):
        with socket.create_connection((host.rendezvous.host, host.rendezvous.port), SOON_S) as client:
            client.sendall(b"\x16\x03\x01")  # where TLS's first record begins
            assert client.recv(1) == b""
        join_rendezvous(RANK_1, host.rendezvous).close()


def test_a_client_without_the_key_is_rejected_within_tls():
    with accepting_host() as (host, _, _):
        client = connect(host.rendezvous)
        authenticate(client, RANK_1, "another key", "commands", b"nonce")
        with pytest.raises(ConnectionLost):
            client.receive(SOON_S)
        join_rendezvous(RANK_1, host.rendezvous).close()
        close_all([client])


def test_a_rank_joins_no_host_with_another_certificate():
    with accepting_host() as (host, _, _):
        real = host.rendezvous
        certificate = make_certificate().certificate
        with pytest.raises(EngineDead, match="certificate verify failed"):
            join_rendezvous(RANK_1, Rendezvous(real.host, real.port, real.key, certificate=certificate))
        join_rendezvous(RANK_1, real).close()


def test_the_challenge_comes_first_within_tls():
    with accepting_host() as (host, _, _):
        client = connect(host.rendezvous)
        assert isinstance(client.receive(SOON_S), Challenge)
        client.close()
        join_rendezvous(RANK_1, host.rendezvous).close()


def test_loopback_is_plain_and_all_addresses_are_refused():
    host = RendezvousHost()
    assert host.rendezvous.host == "127.0.0.1"
    assert host.rendezvous.certificate is None
    host.close()
    with pytest.raises(ValueError, match=r"0\.0\.0\.0"):
        RendezvousHost("0.0.0.0")
