"""Check for a free port."""

import socket

from rayinfer.errors import RayinferError


def check_port_is_free(host: str, port: int) -> None:
    """Raise RayinferError when another process has the port.

    Serve itself would not notice: it shares ports, and the two services would answer in turn.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        raise RayinferError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
