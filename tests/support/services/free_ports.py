"""Ports that nothing listens on."""

import socket


def free_port() -> int:
    """Find a port that is free together with the next one, which a service takes for gRPC."""
    while True:
        with socket.socket() as http, socket.socket() as grpc:
            http.bind(("127.0.0.1", 0))
            port = int(http.getsockname()[1])
            try:
                grpc.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
