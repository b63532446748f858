"""Bounds of a transfer: times, connections and memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferLimits:
    """Bounds on what peers can take, in time and in memory."""

    connect_timeout_s: float = 1.0
    hello_timeout_s: float = 5.0  # for a peer to show the key, TLS included
    send_timeout_s: float = 5.0  # for a peer to take one block
    idle_timeout_s: float = 30.0  # of a connection without a request
    max_wait_s: float = 5.0  # for blocks that are not there yet
    stall_s: float = 1.0  # of that, without a further block
    max_unauthenticated: int = 16  # connections; one more ends the oldest
    max_connections: int = 16  # of peers that have shown the key, each with a buffer of one block
    max_peers: int = 16  # that one agent is connected to
    num_fetches: int = 4  # at once, by one engine
    staging_bytes: int = 8 * 2**20  # of each of them; two blocks at least


DEFAULT_TRANSFER_LIMITS = TransferLimits()
