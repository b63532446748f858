import socket
import subprocess
import sys

import pytest

from rayinfer_deployments.cluster import idle_agent

SCRIPT = [sys.executable, "-I", "-S", idle_agent.__file__]
# Starts the script as raylet does, says so, and ends with its own input.
RAYLET = """
import os, subprocess, sys
subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, env={"RAY_RAYLET_PID": str(os.getpid())})
print("up", flush=True)
sys.stdin.read()
"""
AGENT = "import sys; print(sys.argv[-1], flush=True)"


@pytest.fixture
def raylet(tmp_path):
    """Start the script below a process in raylet's place; the end of its output is the end of both."""
    processes = []

    def start(*arguments):
        command = [sys.executable, "-S", "-c", RAYLET, *SCRIPT, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "up\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def wait_for_port(file, output):
    while not file.exists():
        assert output.poll() is None
    return int(file.read_text())


def test_an_idle_agent_ends_with_raylet(raylet):
    assert raylet().communicate("", timeout=20) == ("", None)


def test_an_idle_agent_that_listens_ends_with_raylet_too(raylet, tmp_path):
    process = raylet("127.0.0.1", tmp_path / "port", "--port", sys.executable, "-S", "-c", AGENT)
    wait_for_port(tmp_path / "port", process)
    assert process.communicate("", timeout=20) == ("", None)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_idle_agent_becomes_the_agent_on_its_port_once_something_connects(raylet, tmp_path, address):
    process = raylet(address, tmp_path / "port", "--port", sys.executable, "-S", "-c", AGENT)
    port = wait_for_port(tmp_path / "port", process)
    socket.create_connection((address, port), timeout=20).close()
    assert process.stdout.readline() == f"--port={port}\n"
    with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
        pass  # it has left the port to the agent
