"""Failed keys by client address, within the last minute."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rayinfer.errors import RateLimited

WINDOW_S = 60.0
MAX_FAILURES = 20
MAX_ADDRESSES = 4096
IPV6_PREFIX = 64  # what one client usually has


@dataclass(slots=True)
class _Failures:
    since_s: float
    count: int = 0


class FailedKeys:
    """Counter of failed keys; it knows a bounded number of addresses, and forgets the oldest.

    It slows down guessing, and never refuses a valid key: many clients may share an address with one that guesses.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_network: OrderedDict[str, _Failures] = OrderedDict()  # by the begin of their minute

    def record(self, address: str) -> None:
        """Count a failed key; raises RateLimited beyond the limit of the address."""
        now, network = self._clock(), _network(address)
        failures = self._by_network.get(network)
        if failures is None or now - failures.since_s >= WINDOW_S:
            self._by_network.pop(network, None)
            failures = self._by_network[network] = _Failures(now)
            if len(self._by_network) > MAX_ADDRESSES:
                self._by_network.popitem(last=False)
        failures.count += 1
        if failures.count > MAX_FAILURES:
            left_s = failures.since_s + WINDOW_S - now
            raise RateLimited("Too many requests with keys that are not valid came from this address.", left_s)

    def __len__(self) -> int:
        return len(self._by_network)


def _network(address: str) -> str:
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], IPV6_PREFIX), strict=False))
    except ValueError:
        return address
