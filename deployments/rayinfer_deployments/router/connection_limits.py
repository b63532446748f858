"""Limits on a port's connections: in total, per address, idle, and with an incomplete request."""

import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

FILES_FOR_OTHERS = 256  # of a router: its lines to engines, Ray's sockets, logs


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """The most connections of each kind that a router's own port keeps."""

    max_connections: int = 8192  # fewer where the process may not open as many files
    max_connections_per_address: int = 4096  # a gateway in front has one address for all its clients
    max_idle_connections: int = 2048  # without a request in flight
    max_unfinished_requests: int = 512  # with an incomplete head or body


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


class Phase(Enum):
    """State of a connection's request."""

    IDLE = auto()
    RECEIVING = auto()
    RESPONDING = auto()


class Connection(Protocol):
    """A connection as the table needs it."""

    def evict(self) -> None:
        """Close the connection, which is sending no response."""


AnyConnection = TypeVar("AnyConnection", bound=Connection)


class ConnectionTable(Generic[AnyConnection]):
    """The connections of a port by address and phase, the oldest of each first.

    Where there are too many, the oldest idle one is closed, and with none idle the oldest whose request is incomplete.
    Responses in flight are never cut: where nothing else is left, the new connection is refused.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._max_connections = min(limits.max_connections, max(1, _most_open_files() - FILES_FOR_OTHERS))
        self._addresses: dict[AnyConnection, str] = {}
        self._phases: dict[AnyConnection, Phase] = {}  # without those that are being closed
        self._all: dict[Phase, dict[AnyConnection, None]] = _by_phase()
        self._of_address: dict[str, dict[Phase, dict[AnyConnection, None]]] = {}
        self._num_of_address: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of connections that are not gone yet."""
        return len(self._addresses)

    def add(self, connection: AnyConnection, address: str) -> bool:
        """Add a new, idle connection; returns whether it is within the limits.

        A refused one counts until it is removed, like any other.
        """
        self._addresses[connection] = address
        self._num_of_address[address] = self._num_of_address.get(address, 0) + 1
        if self._num_of_address[address] > self._limits.max_connections_per_address:
            has_room = self._evict_one(self._of_address.get(address, {}))
        else:
            has_room = len(self._addresses) <= self._max_connections or self._evict_one(self._all)
        if has_room:
            self.enter(connection, Phase.IDLE)
        return has_room

    def remove(self, connection: AnyConnection) -> None:
        """Forget a connection that is gone."""
        self._leave_phase(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._num_of_address[address] -= 1
            if not self._num_of_address[address]:
                del self._num_of_address[address]
                self._of_address.pop(address, None)

    def enter(self, connection: AnyConnection, phase: Phase) -> None:
        """Record a connection's phase; one that stays in its phase keeps its age."""
        if self._phases.get(connection) is phase or connection not in self._addresses:
            return
        self._leave_phase(connection)
        self._phases[connection] = phase
        for table in (self._all, self._of_address.setdefault(self._addresses[connection], _by_phase())):
            table[phase][connection] = None
        if len(self._all[Phase.IDLE]) > self._limits.max_idle_connections:
            self._evict(self._all[Phase.IDLE])
        if len(self._all[Phase.RECEIVING]) > self._limits.max_unfinished_requests:
            self._evict(self._all[Phase.RECEIVING])

    def _evict_one(self, table: dict[Phase, dict[AnyConnection, None]]) -> bool:
        for phase in (Phase.IDLE, Phase.RECEIVING):
            if table.get(phase):
                self._evict(table[phase])
                return True
        return False

    def _evict(self, connections: Iterable[AnyConnection]) -> None:
        oldest = next(iter(connections))
        self._leave_phase(oldest)  # it counts until it is closed, but is closed once
        oldest.evict()

    def _leave_phase(self, connection: AnyConnection) -> None:
        phase = self._phases.pop(connection, None)
        if phase is not None:
            del self._all[phase][connection]
            del self._of_address[self._addresses[connection]][phase][connection]


def _by_phase() -> dict[Phase, dict[AnyConnection, None]]:
    return {phase: {} for phase in Phase}


def _most_open_files() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
