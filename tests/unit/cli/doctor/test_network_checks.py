import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rayinfer_deployments.cli.doctor.network_checks import check_open_ports
from rayinfer_deployments.cluster.process_tree import read_process
from rayinfer_deployments.cluster.service_record import ServiceRecord

LISTEN = """
import socket, sys
opened = socket.create_server((sys.argv[1], 0))
print(opened.getsockname()[1], flush=True)
sys.stdin.read()
"""
# The first process leaves the listening to the second one.
LISTEN_IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LISTEN!r}, sys.argv[1]])"


@contextlib.contextmanager
def service_at(address: str, program: str = LISTEN) -> Iterator[tuple[ServiceRecord, int]]:
    """Run a service of one process or two, and give its record and the port at which it listens."""
    with subprocess.Popen(
        [sys.executable, "-c", program, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        started = read_process(process.pid)
        assert started is not None
        record = ServiceRecord(
            pid=process.pid,
            start_ticks=started.start_ticks,
            host="127.0.0.1",
            port=8000,
            models=["tiny"],
            ray_address="",
            owns_ray=True,
            application="rayinfer",
        )
        try:
            yield record, port
        finally:
            process.stdin.close()


@pytest.mark.parametrize("program", [LISTEN, LISTEN_IN_A_CHILD])
def test_a_port_that_other_machines_reach_is_reported_with_its_process(program):
    with service_at("0.0.0.0", program) as (service, port):
        finding = check_open_ports([service])
        assert finding.verdict == "advice"
        assert f"0.0.0.0:{port} (" in finding.found
        assert (f"pid {service.pid})" in finding.found) == (program == LISTEN)
        assert finding.remedy
        assert " more" not in finding.found
        assert check_open_ports([replace(service, port=port)]).verdict == "ok"  # asked for by --host


def test_a_service_on_loopback_is_in_order():
    with service_at("127.0.0.1") as (service, _):
        finding = check_open_ports([service])
        assert (finding.verdict, "port 8000: on 127.0.0.1" in finding.found) == ("ok", True)
        assert "gRPC" in finding.found
        joined = check_open_ports([replace(service, owns_ray=False)])
        assert "Ray that was started elsewhere" in joined.found


def test_without_a_service_nothing_is_open():
    assert check_open_ports([]).found == "no service is running"
