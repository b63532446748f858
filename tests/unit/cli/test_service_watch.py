import io
import os
import signal
import time

import pytest
from rich.console import Console

from rayinfer_deployments.cli.service_watch import end_open_requests
from rayinfer_deployments.operations.control_socket import ControlSocket


class Routers:
    """Routers whose numbers of open requests are given, the last one for ever."""

    def __init__(self, *num_open, interrupts_at=None):
        self.num_open = list(num_open)
        self.calls = []
        self._interrupts_at = interrupts_at

    async def stop_admitting(self):
        self.calls.append("stop_admitting")
        if len(self.calls) == self._interrupts_at:
            os.kill(os.getpid(), signal.SIGINT)
        return self.num_open.pop(0) if len(self.num_open) > 1 else self.num_open[0]

    async def end_requests(self):
        self.calls.append("end_requests")


@pytest.fixture
def end(tmp_path):
    """Return a function that ends routers' requests, and returns what was printed and the seconds that it took."""

    def end_requests_of(routers, grace_s):
        console = Console(record=True, width=200, file=io.StringIO())
        operations = {"stop_admitting": routers.stop_admitting, "end_requests": routers.end_requests}
        started = time.monotonic()
        with ControlSocket(tmp_path / "8000.sock", operations):
            end_open_requests(tmp_path / "8000.sock", grace_s, console)
        return console.export_text().strip(), time.monotonic() - started

    return end_requests_of


def test_an_idle_service_ends_at_once_and_says_nothing(end):
    routers = Routers(0)
    said, took_s = end(routers, 30.0)
    assert (said, routers.calls) == ("", ["stop_admitting"])
    assert took_s < 5


def test_open_requests_are_waited_for(end):
    routers = Routers(3, 1, 0)
    said, took_s = end(routers, 30.0)
    assert said == "waiting for 3 open requests, up to 30 s; press Ctrl+C again to stop at once"
    assert routers.calls == ["stop_admitting"] * 3
    assert took_s < 10


def test_requests_that_do_not_end_in_time_are_ended(end):
    routers = Routers(1)
    said, took_s = end(routers, 0.3)
    assert said == "waiting for 1 open request, up to 0.3 s; press Ctrl+C again to stop at once"
    assert routers.calls[-1] == "end_requests"
    assert took_s >= 0.3


def test_a_second_signal_ends_them_at_once(end):
    routers = Routers(3, interrupts_at=2)
    said, took_s = end(routers, 30.0)
    assert said.splitlines()[1:] == ["ending open requests"]
    assert routers.calls[-1] == "end_requests"
    assert took_s < 10


def test_a_service_without_routers_ends_all_the_same(tmp_path):
    end_open_requests(tmp_path / "none.sock", 30.0, Console(quiet=True))
