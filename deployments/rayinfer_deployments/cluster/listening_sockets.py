"""Listening sockets of this machine's processes, read from /proc, and those among them beyond loopback."""

import ipaddress
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rayinfer_deployments.cluster.process_tree import Process

TCP_LISTENS = "0A"
UDP_UNCONNECTED = "07"  # takes datagrams from anywhere
STATES = {"tcp": TCP_LISTENS, "tcp6": TCP_LISTENS, "udp": UDP_UNCONNECTED, "udp6": UDP_UNCONNECTED}
UNIX_LISTENS = 0x10000  # a flag


@dataclass(frozen=True, kw_only=True, slots=True)
class ListeningSocket:
    """One socket that another process can connect to."""

    protocol: str  # tcp, tcp6, udp, udp6; unix where its name is in no file system
    address: str
    port: int  # 0 of a Unix socket
    process: Process

    @property
    def is_local(self) -> bool:
        """Return whether only this machine reaches it."""
        if self.protocol == "unix":
            return True
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


@dataclass(frozen=True, kw_only=True, slots=True)
class ExposedSocket:
    """A kind of socket that Ray opens beyond loopback in spite of its settings."""

    program: str  # how its process's title begins
    addresses: frozenset[str]
    per_process: int
    reason: str


# Everything that a service on 127.0.0.1 has beyond loopback. Each answers nothing to a call without Ray's token.
EXPOSED_SOCKETS = (
    ExposedSocket(
        program="ray::ServeReplica:",
        addresses=frozenset({"::", "0.0.0.0"}),  # the second where the system has no IPv6
        per_process=1,
        reason="Serve opens each replica's gRPC port at [::]:0, which no setting changes; without Ray's token every "
        "call ends with UNAUTHENTICATED",
    ),
)


def listening_sockets(processes: Iterable[Process]) -> list[ListeningSocket]:
    """List these processes' listening sockets: TCP, UDP and abstract Unix ones; those in files have permissions.

    A process that ends meanwhile, or belongs to another user, has none.
    """
    bound = {entry.inode: entry for entry in _bound_sockets()}
    return [
        ListeningSocket(
            protocol=bound[inode].protocol, address=bound[inode].address, port=bound[inode].port, process=process
        )
        for process in processes
        for inode in sorted(_open_sockets(process.pid) & bound.keys())
    ]


def beyond_loopback(sockets: Iterable[ListeningSocket]) -> list[ListeningSocket]:
    """List those that other machines reach."""
    return [listening for listening in sockets if not listening.is_local]


def not_exposed_by_ray(sockets: Iterable[ListeningSocket]) -> list[ListeningSocket]:
    """List those beyond loopback that are not among the ones that Ray is known to open there."""
    found, counts = [], dict[tuple[int, str], int]()
    for listening in beyond_loopback(sockets):
        kind = _exposed_kind(listening)
        if kind is not None:
            counted = (listening.process.pid, kind.program)
            counts[counted] = counts.get(counted, 0) + 1
            if counts[counted] <= kind.per_process:
                continue
        found.append(listening)
    return found


def _exposed_kind(listening: ListeningSocket) -> ExposedSocket | None:
    for kind in EXPOSED_SOCKETS:
        is_one = listening.process.title.startswith(kind.program) and listening.protocol in ("tcp", "tcp6")
        if is_one and listening.address in kind.addresses:
            return kind
    return None


class _BoundSocket(NamedTuple):
    """One line of Linux's tables."""

    inode: str
    protocol: str
    address: str
    port: int


def _bound_sockets() -> Iterator[_BoundSocket]:
    """Yield the sockets of this network namespace that other processes can connect to."""
    for protocol, state in STATES.items():
        with suppress(FileNotFoundError):  # a system without IPv6
            for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == state:
                    address, _, port = fields[1].partition(":")
                    yield _BoundSocket(fields[9], protocol, _decode_address(address), int(port, 16))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & UNIX_LISTENS and fields[7].startswith("@"):
            yield _BoundSocket(fields[6], "unix", fields[7], 0)


def _decode_address(digits: str) -> str:
    """Read an address, of which each word of four bytes stands in the machine's own order."""
    value = bytes.fromhex(digits)
    words = [int.from_bytes(value[i : i + 4], "big") for i in range(0, len(value), 4)]
    packed = b"".join(socket.ntohl(word).to_bytes(4, "big") for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _open_sockets(pid: int) -> set[str]:
    """Read the inodes of the sockets that a process has open."""
    inodes = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes
