import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import typer
from typer.testing import CliRunner

from rayinfer_deployments.cli.control import status as status_command
from rayinfer_deployments.cluster.service_record import control_socket_path, recorded
from rayinfer_deployments.operations.control_socket import ControlSocket
from support.services.free_ports import free_port

ENGINE = {"name": "rayinfer-engine-abc", "state": "running", "num_running": 3, "num_waiting": 1, "kv_cache_usage": 0.25}


async def report():
    return {
        "state": "UNHEALTHY",
        "reason": "CUDA is out of memory",
        "deployments": [
            {"name": "router", "state": "HEALTHY", "reason": "", "wanted": 1, "replicas": {"RUNNING": 1}},
            {"name": "engine-0-m", "state": "UNHEALTHY", "reason": "it died", "wanted": 2, "replicas": {"STARTING": 1}},
        ],
        "routers": [
            {"name": "r", "models": [{"name": "m", "ready": True, "reason": "", "num_waiting": 7, "engines": [ENGINE]}]}
        ],
        "missing_settings": ["RAY_AUTH_MODE=token: strangers get in"],
    }


@pytest.fixture
def port(monkeypatch, tmp_path):
    """The port of a service that is on record, and on which nothing listens."""
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    port = free_port()
    with recorded(
        host="127.0.0.1", port=port, models=["m"], ray_address="ray:1", owns_ray=False, application="rayinfer"
    ):
        yield port


def run(*arguments):
    application = typer.Typer()
    application.command()(status_command.status)
    return CliRunner().invoke(application, [str(argument) for argument in arguments])


def test_status_reports_all_else_when_the_port_does_not_answer(port):
    with ControlSocket(control_socket_path(port), {"status": report}):
        done = run("--port", port)
    assert done.exit_code == 1
    words = ["not ready", "the port does not answer", "CUDA is out of memory", "rayinfer-engine-abc", "25%", "it died"]
    words += ["1 starting", "RAY_AUTH_MODE=token: strangers get in", "ray:1 (attached)"]
    assert [word for word in words if word not in done.stdout] == []


def test_a_service_that_takes_no_commands_is_still_listed(port):
    done = run("--json")
    (service,) = json.loads(done.stdout)
    assert (done.exit_code, service["port"], service["ready"], service["state"]) == (1, port, False, "UNKNOWN")
    assert "does not accept commands" in service["reason"]
    assert 0 <= service["age_s"] < 3600 * 24


class Unready(BaseHTTPRequestHandler):
    """A service with keys that is not ready, as a client without one sees it."""

    def do_GET(self):
        """Answer."""
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b'{"ready": false}')

    def log_message(self, *_):
        """Stay silent."""


async def loading():
    engine = {"name": "m", "ready": False, "reason": "its engine is loading", "num_waiting": 0, "engines": []}
    return (await report()) | {"state": "RUNNING", "reason": "", "routers": [{"name": "r", "models": [engine]}]}


def test_a_service_with_keys_says_why_it_is_not_ready_on_its_own_machine(port):
    with (
        HTTPServer(("127.0.0.1", port), Unready) as server,
        ControlSocket(control_socket_path(port), {"status": loading}),
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run("--port", port)
        server.shutdown()
    assert "m: its engine is loading" in done.stdout


async def damaged():
    return (await loading()) | {"routers": [{"name": name, "key_error": "keys, line 2", "models": []} for name in "ab"]}


def test_a_damaged_key_file_is_in_the_status(port):
    with ControlSocket(control_socket_path(port), {"status": damaged}):
        assert run("--port", port).stdout.count("the last API keys apply: keys, line 2") == 1
        (service,) = json.loads(run("--json").stdout)
    assert [router["key_error"] for router in service["routers"]] == ["keys, line 2"] * 2
