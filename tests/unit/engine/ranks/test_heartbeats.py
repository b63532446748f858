"""Heartbeats of ranks: a rank that sends none is lost, sooner if its process is known to be stopped."""

import threading

import pytest

from rayinfer.engine.ranks.heartbeats import HeartbeatMonitor
from rayinfer.liveness import LivenessLimits
from support.fakes.control_connections import connection_pair

TIMEOUT_S = 0.3
SOON_S = 10.0
LIMITS = LivenessLimits(group_timeout_s=5 * TIMEOUT_S)


class SilentRank:
    """A rank that sends no heartbeat, and the loss that is reported."""

    def __init__(self, is_stopped=None):
        self.other, self.connection = connection_pair()
        self.is_reported = threading.Event()
        self.monitor = HeartbeatMonitor({3: self.connection}, TIMEOUT_S, self.report, is_stopped, LIMITS)

    def report(self, rank, silent_s):
        self.loss = (rank, silent_s)
        self.is_reported.set()


@pytest.mark.parametrize(
    ("is_stopped", "expected_s"),
    [(None, TIMEOUT_S), ({3}.__contains__, TIMEOUT_S), (lambda rank: False, LIMITS.group_timeout_s)],
    ids=["unknown", "stopped", "running"],
)
def test_a_silent_rank_is_lost_after_the_timeout_and_a_running_one_later(is_stopped, expected_s):
    silent = SilentRank(is_stopped)
    try:
        assert silent.is_reported.wait(SOON_S)
        assert silent.loss == (3, pytest.approx(expected_s))
    finally:
        silent.monitor.close()
        silent.other.close()
