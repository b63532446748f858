"""Check of ports that this user's services open to other machines, for `rayinfer doctor`."""

from collections.abc import Sequence
from pathlib import PurePath

from rayinfer_deployments.cli.doctor.findings import Finding
from rayinfer_deployments.cluster.listening_sockets import ListeningSocket, listening_sockets, not_exposed_by_ray
from rayinfer_deployments.cluster.process_tree import descendants, read_process
from rayinfer_deployments.cluster.service_record import ServiceRecord

NAME = "open ports"
SHOWN = 5


def check_open_ports(services: Sequence[ServiceRecord]) -> Finding:
    """Check which ports of running services other machines reach; a Ray that was joined is left out."""
    opened = [listening for service in services for listening in _unintended(service)]
    if opened:
        ports = ", ".join(_described(each) for each in opened[:SHOWN])
        found = f"beyond loopback: {ports}" + (f" and {len(opened) - SHOWN} more" if len(opened) > SHOWN else "")
        remedy = (
            "unset RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER and RAY_SERVE_HAPROXY_BINARY_PATH, and start the service again"
        )
        return Finding(name=NAME, verdict="advice", found=found, remedy=remedy)
    if not services:
        return Finding(name=NAME, verdict="ok", found="no service is running")
    found = "; ".join(f"port {service.port}: {_intended(service)}" for service in services)
    return Finding(name=NAME, verdict="ok", found=found)


def _described(listening: ListeningSocket) -> str:
    address = f"[{listening.address}]" if ":" in listening.address else listening.address
    program = PurePath(listening.process.title.partition(" ")[0]).name
    return f"{address}:{listening.port} ({program}, pid {listening.process.pid})"


def _unintended(service: ServiceRecord) -> list[ListeningSocket]:
    """List the sockets that the operator has not asked for and Ray is not known to open."""
    process = read_process(service.pid)
    if process is None:
        return []
    sockets = listening_sockets([process, *descendants(service.pid)])
    return not_exposed_by_ray(listening for listening in sockets if listening.port != service.port)


def _intended(service: ServiceRecord) -> str:
    if not service.owns_ray:
        return f"on {service.host}, of a Ray that was started elsewhere"
    return f"on {service.host}, and replicas' gRPC with Ray's token"
