"""Detection of dead and hung peers: the time limits of all processes, tick counting, and stopped processes."""

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True, slots=True)
class LivenessLimits:
    """Intervals and limits that distinguish a dead or hung peer from a busy one, all in seconds."""

    # Engine loop, towards its routers
    loop_heartbeat_s: float = 0.5  # between two iterations of an idle loop
    message_interval_s: float = 0.75  # without a message, after which routers get a report; more than a heartbeat
    subscribe_timeout_s: float = 60.0  # for a router that has sent requests to read their outputs
    min_step_limit_s: float = 5.0  # every step may take so long
    step_limit_factor: float = 10.0  # of the longest recent step, and of what the current one should take

    # Router, towards its engines
    connect_timeout_s: float = 5.0
    link_tick_s: float = 0.25
    link_timeout_s: float = 2.25  # without a message, where another engine can continue the streams
    last_link_timeout_s: float = 10.25  # where none can
    link_close_s: float = 5.0  # a hung engine never closes its end
    reconcile_interval_s: float = 1.0
    describe_timeout_s: float = 10.0
    replace_timeout_s: float = 10.0  # for an engine that leaves to serve until its replacement has joined

    # Engine server, towards routers
    server_hello_timeout_s: float = 10.0  # TLS included
    router_timeout_s: float = 20.0  # for a router's machine to acknowledge data

    # Replica, towards the engine's processes
    report_interval_s: float = 0.5
    report_timeout_s: float = 8.0  # no step keeps a process from replying: one that does not is hung
    max_stall_s: float = 60.0  # far above the longest step of a healthy engine on a busy machine
    stall_grace_s: float = 5.0  # beyond the engine's own limit, at which routers leave it: the step may still end
    ping_interval_s: float = 0.25
    stopped_ping_timeout_s: float = 1.75  # of a rank whose process is stopped: as quick as routers are
    ping_timeout_s: float = 30.0  # of any other: Python's lock may be held while weights are read
    first_ping_timeout_s: float = 600.0  # until Ray has started the process
    node_poll_s: float = 2.0  # between two looks for nodes that are to leave, of engines on several
    root_cause_s: float = 1.0  # for the rank that failed first to report, when another has already missed it

    # Ranks of an engine, towards each other
    heartbeat_interval_s: float = 1.0
    heartbeats_in_timeout: int = 6  # at least
    group_timeout_s: float = 30.0  # without a heartbeat
    heartbeat_read_s: float = 1.0  # for the rest of one that has begun to arrive
    rank_poll_s: float = 0.2  # between two checks of processes and connections
    rank_hello_timeout_s: float = 5.0
    start_timeout_s: float = 1800.0  # while ranks start and read their weights, and whenever they read them again
    step_timeout_s: float = 1800.0  # of ranks that send heartbeats: no fault of one may block all for ever
    final_message_s: float = 0.5  # for a rank that exits to report why
    shutdown_grace_s: float = 5.0  # for ranks to exit on command
    orphan_grace_s: float = 2.0  # for a rank to exit in order when rank 0 is gone


DEFAULT_LIMITS = LivenessLimits()


class TickWatch:
    """Time since a peer's last sign of life, counted in ticks of the observer's own loop.

    A suspended machine or a delayed loop makes no ticks, so its peers are not taken for dead.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.num_missed = 0  # ticks in a row

    @property
    def silent_s(self) -> float:
        """Seconds of ticks since the last reset."""
        return self.num_missed * self._interval_s

    def tick(self) -> None:
        """Count one interval without a sign of life."""
        self.num_missed += 1

    def reset(self) -> None:
        """Record a sign of life."""
        self.num_missed = 0

    def has_missed(self, limit_s: float) -> bool:
        """Return whether as many ticks were missed as the limit has."""
        return self.num_missed >= self.num_ticks(limit_s)

    def num_ticks(self, limit_s: float) -> int:
        """Return the number of ticks in a limit, at least one."""
        return max(1, round(limit_s / self._interval_s))


def is_stopped(process_id: int) -> bool:
    """Return whether a process was stopped, by a signal or a debugger: it computes nothing until it is continued.

    False where there is no such process, or its state cannot be read.
    """
    try:
        status = psutil.Process(process_id).status()
    except psutil.Error:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
