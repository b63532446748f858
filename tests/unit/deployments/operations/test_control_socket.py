import socket
import stat
import threading

import pytest

from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.cluster.control_client import ask
from rayinfer_deployments.operations.control_socket import ControlSocket


async def add(first, second=1):
    return {"sum": first + second}


async def refuse():
    raise ConfigError("not like this")


async def fail():
    raise KeyError("accident")


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / ("deep" * 30)  # longer than a socket's address may be
    folder.mkdir()
    return folder / "8000.sock"


@pytest.fixture
def service(path):
    with ControlSocket(path, {"add": add, "refuse": refuse, "fail": fail}):
        yield path


def test_a_command_is_carried_out_with_its_arguments(service):
    assert ask(service, "add", timeout_s=5, first=2) == {"sum": 3}
    assert ask(service, "add", timeout_s=5, first=2, second=5) == {"sum": 7}


def test_only_the_user_can_open_the_socket(service):
    assert stat.S_IMODE(service.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("operation", "message"),
    [("refuse", "not like this"), ("fail", "KeyError"), ("unheard-of", "knows no command 'unheard-of'")],
)
def test_a_command_that_fails_says_why_and_the_next_one_is_heard(service, operation, message):
    with pytest.raises(RayinferError, match=message):
        ask(service, operation, timeout_s=5)
    assert ask(service, "add", timeout_s=5, first=0) == {"sum": 1}


def test_nonsense_ends_its_own_connection_only(service, tmp_path):
    (tmp_path / "short").symlink_to(service.parent)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "short" / service.name))
        connection.sendall(b"hello\n")
        assert connection.recv(100) == b""
    assert ask(service, "add", timeout_s=5, first=0) == {"sum": 1}


def test_a_service_that_is_gone_or_silent_is_said(path):
    with ControlSocket(path, {}):
        pass
    assert not path.exists()
    with pytest.raises(RayinferError, match="does not accept commands"):
        ask(path, "add", timeout_s=5)


def test_the_end_of_a_socket_ends_its_thread(path):
    before = set(threading.enumerate())
    with ControlSocket(path, {"add": add}):
        ask(path, "add", timeout_s=5, first=0)
        (thread,) = set(threading.enumerate()) - before
    thread.join(5)
    assert not thread.is_alive()
