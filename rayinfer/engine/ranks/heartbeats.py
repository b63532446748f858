"""Heartbeats between the ranks of an engine, sent and watched by a thread of each rank.

They continue whatever the rank computes, loads or waits for, as long as Python's lock is released once in a while: how
long a step takes does not matter.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping

from rayinfer.engine.ranks.control_connection import ConnectionLost, ControlConnection
from rayinfer.engine.ranks.rank_messages import Heartbeat
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits, TickWatch
from rayinfer.wire import BadMessage


class HeartbeatMonitor:
    """Sender of heartbeats on every connection; calls `on_loss` once with the first rank that sends none, and seconds.

    A rank whose process is stopped, as far as `is_stopped` can tell, is lost after `timeout_s`; any other one not
    before `group_timeout_s`: on a busy machine, or while it loads, a rank may be delayed for seconds.
    """

    def __init__(
        self,
        connections: Mapping[int, ControlConnection],
        timeout_s: float,
        on_loss: Callable[[int, float], None],
        is_stopped: Callable[[int], bool] | None = None,
        limits: LivenessLimits = DEFAULT_LIMITS,
    ) -> None:
        self._connections = connections  # by the rank at the other end
        self._timeout_s = timeout_s
        self._longest_s = timeout_s if is_stopped is None else max(timeout_s, limits.group_timeout_s)
        self._interval_s = min(limits.heartbeat_interval_s, timeout_s / limits.heartbeats_in_timeout)
        self._read_s = limits.heartbeat_read_s
        self._is_stopped = is_stopped
        self._on_loss = on_loss
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="heartbeats", daemon=True).start()

    def stop(self) -> None:
        """Neither send nor watch any more."""
        self._is_over.set()

    def close(self) -> None:
        """Stop, and shut the connections down."""
        self.stop()
        for connection in self._connections.values():
            connection.shutdown()

    def _run(self) -> None:
        watches = {rank: TickWatch(self._interval_s) for rank in self._connections}
        try:
            while not self._is_over.wait(self._interval_s):
                for rank, connection in self._connections.items():
                    if self._has_arrived(connection):
                        watches[rank].reset()
                    else:
                        watches[rank].tick()
                    with contextlib.suppress(ConnectionLost):
                        connection.send(Heartbeat(), 0.0)
                lost = [rank for rank, watch in watches.items() if self._is_lost(rank, watch)]
                if lost and not self._is_over.is_set():
                    self.stop()
                    first = max(lost, key=lambda rank: watches[rank].num_missed)
                    self._on_loss(first, watches[first].silent_s)
        finally:
            for connection in self._connections.values():
                connection.close()

    def _is_lost(self, rank: int, watch: TickWatch) -> bool:
        if watch.has_missed(self._longest_s):
            return True
        return watch.has_missed(self._timeout_s) and self._is_stopped is not None and self._is_stopped(rank)

    def _has_arrived(self, connection: ControlConnection) -> bool:
        has_arrived = False
        with contextlib.suppress(ConnectionLost, BadMessage):
            while connection.has_unread:
                has_arrived |= isinstance(connection.receive(self._read_s), Heartbeat)
        return has_arrived
