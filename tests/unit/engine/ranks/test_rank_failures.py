"""Root cause of several failures: the rank that failed first, not those that only lost it."""

import threading
import time

import pytest

from rayinfer.engine.ranks.control_connection import ConnectionLost
from rayinfer.engine.ranks.rank_failures import is_consequence, rank_lost, report_failure, root_cause
from rayinfer.engine.ranks.rank_messages import Failed
from rayinfer.errors import EngineDead, ModelLoadError
from support.fakes.control_connections import connection_pair

GRACE_S = 0.5
GLOO_ERROR = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer")


@pytest.fixture
def connections():
    """Rank 0's ends to ranks 1, 2 and 3, and theirs."""
    pairs = [connection_pair() for _ in range(3)]
    yield [near for near, _ in pairs], [far for _, far in pairs]
    for near, far in pairs:
        near.close()
        far.close()


def test_a_killed_rank_is_named_rather_than_those_that_lost_it(connections):
    near, far = connections
    report_failure(far[0], GLOO_ERROR)
    far[0].close()
    threading.Timer(0.2, far[1].close).start()
    assert root_cause(GLOO_ERROR, near, GRACE_S).text == "rank 2 is lost: it has closed the connection"


@pytest.mark.parametrize("seen", [GLOO_ERROR, rank_lost(1, ConnectionLost("it has closed the connection"))])
def test_a_ranks_report_of_its_own_failure_explains_the_others(seen, connections):
    near, far = connections
    report_failure(far[0], EngineDead("rank 0 is lost"))
    report_failure(far[2], ModelLoadError("no tensor"))
    for connection in far:
        connection.close()
    assert root_cause(seen, near, GRACE_S).text == "rank 3 failed: ModelLoadError: no tensor"


def test_the_first_of_two_own_failures_is_named(connections):
    near, far = connections
    far[0].send(Failed("MemoryError: later", failed_at=20.0), 1.0)
    far[1].send(Failed("MemoryError: sooner", failed_at=10.0), 1.0)
    assert root_cause(GLOO_ERROR, near, GRACE_S).text == "rank 2 failed: MemoryError: sooner"


def test_a_rank_that_only_lost_another_is_no_cause_though_it_has_closed(connections):
    near, far = connections
    report_failure(far[0], GLOO_ERROR)
    far[0].close()
    far[1].close()
    assert (
        root_cause(rank_lost(1, ConnectionLost("it has closed the connection")), near, GRACE_S).text
        == "rank 2 is lost: it has closed the connection"
    )


def test_an_own_failure_is_named_at_once(connections):
    near, far = connections
    report_failure(far[0], GLOO_ERROR)
    started = time.monotonic()
    assert root_cause(ValueError("own"), near, grace_s=60.0).text == "ValueError: own"
    assert time.monotonic() - started < 10.0


def test_without_another_failure_the_cause_is_the_error_itself(connections):
    near, _ = connections
    assert "Connection closed by peer" in root_cause(GLOO_ERROR, near, grace_s=0.1).text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GLOO_ERROR, True),
        (ConnectionLost("it has closed the connection"), True),
        (EngineDead("rank 0 is lost"), True),
        (RuntimeError("shapes do not match"), False),
        (MemoryError(), False),
        (ModelLoadError("no tensor"), False),
    ],
)
def test_only_errors_that_report_another_ranks_exit_are_consequences(error, expected):
    assert is_consequence(error) is expected
