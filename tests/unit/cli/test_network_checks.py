import os
import socket
import subprocess
from dataclasses import replace

import pytest

from rayinfer_deployments.cli.network_checks import check_open_ports
from rayinfer_deployments.process_tree import read_process
from rayinfer_deployments.service_record import ServiceRecord


@pytest.fixture
def service():
    """A service whose one process is this."""
    own = read_process(os.getpid())
    return ServiceRecord(
        pid=own.pid,
        start_ticks=own.start_ticks,
        host="127.0.0.1",
        port=8000,
        models=["tiny"],
        ray_address="",
        owns_ray=True,
        application="rayinfer",
    )


def test_a_port_that_other_machines_reach_is_reported_with_its_process(service):
    with socket.create_server(("0.0.0.0", 0)) as opened:
        finding = check_open_ports([service])
        assert finding.verdict == "advice"
        assert f"0.0.0.0:{opened.getsockname()[1]} (" in finding.found
        assert finding.remedy
        assert " more" not in finding.found
        assert check_open_ports([replace(service, port=opened.getsockname()[1])]).verdict == "ok"  # asked for by --host


def test_a_process_that_a_service_has_started_counts_as_the_services(service):
    with socket.create_server(("0.0.0.0", 0)) as opened:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[opened.fileno()])
    try:
        assert f"(sleep, pid {child.pid})" in check_open_ports([service]).found
    finally:
        child.kill()
        child.wait()


def test_a_ray_that_was_there_before_is_not_described_as_the_services(service):
    assert "gRPC" in check_open_ports([service]).found
    assert "Ray that was started elsewhere" in check_open_ports([replace(service, owns_ray=False)]).found


def test_a_service_on_loopback_is_in_order(service):
    with socket.create_server(("127.0.0.1", 0)):
        finding = check_open_ports([service])
    assert (finding.verdict, "port 8000: on 127.0.0.1" in finding.found) == ("ok", True)
    assert check_open_ports([]).found == "no service is running"
