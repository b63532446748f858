"""Network addresses of hosts: resolution, and what may be reached from a service."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

MAX_RESOLVER_THREADS = 4  # a resolver may hang for half a minute
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host for connections to a port; raises OSError where there are none."""


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet.

    Loopback, private and link-local networks, those of carriers and of documentation, multicast and unspecified
    addresses are not, nor are IPv6 addresses that lead to such an IPv4 address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        embedded = found.ipv4_mapped or found.sixtofour
        if embedded is None and found in _NAT64:
            embedded = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
    return found.is_global and not (found.is_multicast or found.is_reserved)


class SystemResolver:
    """The machine's own resolver, in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_RESOLVER_THREADS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return a host's addresses; raises OSError."""
        loop = asyncio.get_running_loop()
        return list(dict.fromkeys(await loop.run_in_executor(self._threads, _look_up, host, port)))


def _look_up(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
