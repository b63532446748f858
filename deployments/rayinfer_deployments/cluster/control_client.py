"""Client of a service's control socket: sends one command and reads its outcome."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rayinfer.errors import RayinferError

CONNECT_S = 5.0


def result_in(outcome: Mapping[str, Any]) -> Any:
    """Return the result in a command's outcome; raises RayinferError where the service refused."""
    if "error" in outcome:
        raise RayinferError(outcome["error"])
    return outcome["result"]


def ask(path: Path, operation: str, *, timeout_s: float, **arguments: Any) -> Any:
    """Send a command to a running service; raises RayinferError when it refuses, or does not answer in time."""
    line = json.dumps({"operation": operation, "arguments": arguments}).encode() + b"\n"
    try:
        with short_path(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CONNECT_S)
            connection.connect(address)
            connection.settimeout(timeout_s)
            connection.sendall(line)
            with connection.makefile("rb") as responses:
                response = responses.readline()
    except TimeoutError:
        raise RayinferError(f"the service's process has not answered within {timeout_s:.0f} s") from None
    except OSError as error:
        raise RayinferError(f"the service does not accept commands yet: {error.strerror or error}") from None
    if not response:
        raise RayinferError("the service's process has ended")
    return result_in(json.loads(response))


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Write a path in less than the 108 bytes that a socket's address may have."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
