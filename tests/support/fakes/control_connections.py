"""Both ends of a control line, in one process."""

import socket

from rayinfer.engine.ranks.control_connection import ControlLine


def pair_of_lines() -> tuple[ControlLine, ControlLine]:
    """Connect two ends over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = ControlLine(socket.create_connection(listener.getsockname()))
        return near, ControlLine(listener.accept()[0])
