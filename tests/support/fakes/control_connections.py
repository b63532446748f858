"""Both ends of a control connection, in one process."""

import socket

from rayinfer.engine.ranks.control_connection import ControlConnection


def connection_pair() -> tuple[ControlConnection, ControlConnection]:
    """Connect two ends over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = ControlConnection(socket.create_connection(listener.getsockname()))
        return near, ControlConnection(listener.accept()[0])
