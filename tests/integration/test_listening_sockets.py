"""Listening sockets of a service beyond loopback: only those that Ray is known to open, in every profile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rayinfer_deployments
from rayinfer_deployments.cluster.listening_sockets import (
    EXPOSED_SOCKETS,
    beyond_loopback,
    listening_sockets,
    not_exposed_by_ray,
)
from rayinfer_deployments.cluster.process_tree import descendants, read_process
from support.faults.cli_processes import COMMAND, serving
from support.golden.token_probe import call_all, with_token
from support.services.free_ports import free_port
from support.tiny_models.tiny_checkpoints import make_tiny_llama

CONFIGS = Path(rayinfer_deployments.__file__).parent / "configs"
ON_A_CPU = ("autoscaling", "cpu", "throughput", "two-models")
ENGINE = ("--num-kv-blocks", 256, "--num-threads", 1)
AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}  # of a Ray that was started as usual
DEPLOY = Path(__file__).parent.parent / "support" / "services" / "config_deployment.py"


def assert_only_known_sockets(processes, *, agents=frozenset(), asked_for=frozenset()):
    """Nothing but what Ray is known to open leaves loopback, and that answers no call without the token."""
    sockets = [each for each in listening_sockets(processes) if each.port not in asked_for]
    programs = {Path(each.process.title.partition(" ")[0]).name for each in sockets}
    assert {"gcs_server", "raylet"} <= programs
    assert programs & AGENTS == agents
    assert not_exposed_by_ray(sockets) == []
    exposed = beyond_loopback(sockets)
    for kind in EXPOSED_SOCKETS:
        assert any(each.process.title.startswith(kind.program) for each in exposed), f"no longer opened: {kind}"
    for each in exposed:
        assert call_all(each.port) == {"UNAUTHENTICATED"}, each
        assert "UNAUTHENTICATED" not in call_all(each.port, with_token()), each


def test_a_service_leaves_nothing_open_beyond_loopback_but_what_ray_does(service, serve_grpc_port):
    # Serve's own gRPC listens everywhere; only who asks for it has it.
    processes = [read_process(os.getpid()), *descendants(os.getpid())]
    assert_only_known_sockets(processes, agents=AGENTS, asked_for={serve_grpc_port})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.faults  # each start takes as long
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--routers", 2, "--replicas", "0:2"),
        ("--tensor-parallel-size", 2),
        ("--profile", "throughput", "--routers", 2, "--replicas", 2),
    ],
)
def test_rayinfer_serve_leaves_nothing_open_in_any_profile(model, tmp_path, arguments):
    with serving(model, *ENGINE, *arguments, cache=tmp_path) as service:
        service.wait_for_line("curl ")
        assert_only_known_sockets(service.processes())


@pytest.mark.faults
@pytest.mark.parametrize("profile", ["latency", "throughput"])
def test_a_service_for_other_machines_opens_its_own_port_to_them_and_no_other(model, tmp_path, profile):
    with serving(model, *ENGINE, "--profile", profile, "--host", "0.0.0.0", cache=tmp_path) as service:
        service.wait_for_line("curl ")
        sockets = listening_sockets(service.processes())
        http = {each for each in sockets if each.port == service.port}
        grpc = {each for each in sockets if each.port == service.port + 1}
        assert {each.address for each in http} == {"0.0.0.0"}
        assert {each.address for each in grpc} in ({"0.0.0.0"}, {"::"})  # with IPv6, gRPC's library opens both by this
        own = http | grpc
        assert not_exposed_by_ray(each for each in sockets if each not in own) == []


@pytest.mark.faults
@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_config_file_on_one_machine_leaves_nothing_open(model, name):
    profile = "throughput" if name == "throughput" else "latency"
    printed = subprocess.run(
        [*COMMAND, "environment", "--profile", profile, "--one-machine"], capture_output=True, text=True, check=True
    )
    settings = dict(line.removeprefix("export ").split("=", 1) for line in printed.stdout.splitlines())
    command = [sys.executable, DEPLOY, CONFIGS / f"{name}.yaml", model, str(free_port())]
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
    ) as deployment:
        assert deployment.stdin is not None
        assert deployment.stdout is not None
        try:
            assert json.loads(deployment.stdout.readline()) == "ready"
            assert_only_known_sockets([read_process(deployment.pid), *descendants(deployment.pid)])
        finally:
            deployment.stdin.close()
