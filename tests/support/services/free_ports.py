"""Ports that nothing listens on."""

import random
import socket

# Below the ports that the kernel hands out (Linux: from 32768): no connection or other listener gets one meanwhile.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Find a port that is free together with the next one, which a service takes for gRPC."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as http, socket.socket() as grpc:
            try:
                http.bind(("127.0.0.1", port))
                grpc.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
