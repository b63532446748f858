"""A service while it runs: monitoring, and at a signal the wait for open requests, which a second one cuts short."""

import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.terminal import KeyFileReports

if TYPE_CHECKING:
    from rayinfer_deployments.cli.service_run import Cluster, Service

WATCH_S = 1.0
PRIORITIES_EVERY = 30  # checks
POLL_S = 0.1
ANSWER_S = 3.0  # for the routers; where they are gone, nothing is to be waited for


def watch(service: "Service", cluster: "Cluster", application: str, console: Console) -> NoReturn:
    """Wait until the service fails or is interrupted, and let open requests end then."""
    from rayinfer_deployments.cluster.service_record import control_socket_path

    try:
        _check_for_ever(service, cluster, application, console)
    except KeyboardInterrupt:
        end_open_requests(control_socket_path(service.port), service.shutdown_grace_s, console)
        raise


def end_open_requests(control_socket: Path, grace_s: float, console: Console) -> None:
    """Refuse new requests, let open ones end within the grace period, and end the others with an error."""
    from rayinfer_deployments.cluster.control_client import ask

    try:
        if not _wait_for_requests(control_socket, grace_s, console):
            return  # the routers have written everything
    except KeyboardInterrupt:
        console.print("ending open requests")
    except RayinferError:
        return  # no router answers
    try:
        ask(control_socket, "end_requests", timeout_s=ANSWER_S)
    except RayinferError:
        return


def _wait_for_requests(control_socket: Path, grace_s: float, console: Console) -> int:
    """Return how many requests are open at the end of the wait."""
    from rayinfer_deployments.cluster.control_client import ask

    num_open = ask(control_socket, "stop_admitting", timeout_s=ANSWER_S)
    if num_open and grace_s:
        requests = "1 open request" if num_open == 1 else f"{num_open} open requests"
        line = f"waiting for {requests}, up to {grace_s:g} s; press Ctrl+C again to stop at once"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    latest = time.monotonic() + grace_s
    while num_open and time.monotonic() < latest:
        time.sleep(POLL_S)
        num_open = ask(control_socket, "stop_admitting", timeout_s=ANSWER_S)
    return int(num_open)


def _check_for_ever(service: "Service", cluster: "Cluster", application: str, console: Console) -> NoReturn:
    """Check the cluster and the keys' file, and lower the priority of restarted background processes again."""
    from rayinfer_deployments.cluster.process_priority import deprioritize_control_plane

    key_file = service.options.get("api_keys")
    keys = None if key_file is None else KeyFileReports(Path(key_file), console)
    for second in itertools.count():
        cluster.check()
        if keys is not None:
            keys.check()
        if service.prioritize_engines and cluster.owns_ray and second % PRIORITIES_EVERY == 0:
            deprioritize_control_plane(os.getpid(), application)
        time.sleep(WATCH_S)
    raise AssertionError("unreachable")
