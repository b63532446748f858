"""Listening sockets of processes, and which of them other machines reach."""

import os
import socket
from dataclasses import replace

import pytest

from rayinfer_deployments.cluster.listening_sockets import beyond_loopback, listening_sockets, not_exposed_by_ray
from rayinfer_deployments.cluster.process_tree import read_process


def own_sockets():
    return listening_sockets([read_process(os.getpid())])


def one_at(port):
    (found,) = (each for each in own_sockets() if each.port == port)
    return found


@pytest.mark.parametrize(
    ("family", "address", "is_local"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.0.0.2", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
        (socket.AF_INET6, "::", False),
    ],
)
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_is_found_with_its_address_and_process(family, address, is_local, kind):
    with socket.socket(family, kind) as opened:
        opened.bind((address, 0))
        if kind == socket.SOCK_STREAM:
            opened.listen()
        port = opened.getsockname()[1]
        found = one_at(port)
        assert (found.address, found.is_local, found.process.pid) == (address, is_local, os.getpid())
        assert (found in beyond_loopback(own_sockets())) == (not is_local)
    assert all(each.port != port for each in own_sockets())


def test_a_unix_socket_without_a_file_is_found():
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("\0rayinfer-test")
        opened.listen()
        assert [each.protocol for each in own_sockets() if each.address == "@rayinfer-test"] == ["unix"]


def test_a_socket_that_is_connected_is_no_listening_one():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            ports = [each.port for each in own_sockets()]
            assert client.getsockname()[1] not in ports
            assert ports.count(server.getsockname()[1]) == 1


def test_only_a_replicas_first_port_on_all_interfaces_is_rays():
    replica = replace(read_process(os.getpid()), title="ray::ServeReplica:rayinfer:router")
    with socket.create_server(("0.0.0.0", 0)) as one, socket.create_server(("0.0.0.0", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
        first, second = (each for each in beyond_loopback(own_sockets()) if each.port in ports)
    as_replica = [replace(each, process=replica) for each in (first, second)]
    assert not_exposed_by_ray(as_replica[:1]) == []
    assert not_exposed_by_ray(as_replica) == as_replica[1:]
    assert not_exposed_by_ray([first]) == [first]
    assert not_exposed_by_ray([replace(as_replica[0], address="192.0.2.7")]) != []
    assert not_exposed_by_ray([replace(as_replica[0], protocol="udp")]) != []
    another = replace(as_replica[1], process=replace(replica, pid=replica.pid + 1))
    assert not_exposed_by_ray([as_replica[0], another]) == []


def test_a_unix_socket_in_a_file_has_permissions_and_is_not_listed(tmp_path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s"))
        opened.listen()
        assert all(str(tmp_path) not in each.address for each in own_sockets())
