"""A folder and two ports for one service's HAProxy: by default all services of a machine would share them."""

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Iterator

from rayinfer_deployments.ray_environment import haproxy_settings

FOLDERS = "/tmp"  # the cache folder's path may be longer than a socket's may be


@contextlib.contextmanager
def haproxy_files() -> Iterator[dict[str, str]]:
    """Make the folder, which only this user can enter; yields the settings that name it, and removes it at the end."""
    folder = tempfile.mkdtemp(prefix="rayinfer-", dir=FOLDERS)
    try:
        yield haproxy_settings(folder, *_free_ports(2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
