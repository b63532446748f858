"""Of several ranks that fail, the first one is named, not those that only lost it."""

import threading
import time

import pytest

from rayinfer.engine.ranks.control_connection import LineLost
from rayinfer.engine.ranks.plan_codec import Failed
from rayinfer.engine.ranks.rank_failures import first_failure, is_consequence, lost, say_last_words
from rayinfer.errors import EngineDead, ModelLoadError
from support.fakes.control_connections import pair_of_lines

GLOO_ERROR = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer")


@pytest.fixture
def lines():
    """Rank 0's ends to ranks 1, 2 and 3, and theirs."""
    pairs = [pair_of_lines() for _ in range(3)]
    yield [near for near, _ in pairs], [far for _, far in pairs]
    for near, far in pairs:
        near.close()
        far.close()


def test_a_rank_that_was_killed_is_named_rather_than_those_that_miss_it(lines):
    near, far = lines
    say_last_words(far[0], GLOO_ERROR)
    far[0].close()
    threading.Timer(0.2, far[1].close).start()
    assert first_failure(GLOO_ERROR, near).text == "rank 2 is lost: it has hung up"


@pytest.mark.parametrize("seen", [GLOO_ERROR, lost(1, LineLost("it has hung up"))])
def test_what_a_rank_says_of_its_own_failure_explains_the_others(seen, lines):
    near, far = lines
    say_last_words(far[0], EngineDead("rank 0 is lost"))
    say_last_words(far[2], ModelLoadError("no tensor"))
    for line in far:
        line.close()
    assert first_failure(seen, near).text == "rank 3 failed: ModelLoadError: no tensor"


def test_of_two_that_failed_by_themselves_the_first_one_is_named(lines):
    near, far = lines
    far[0].send(Failed("MemoryError: later", failed_at=20.0), 1.0)
    far[1].send(Failed("MemoryError: sooner", failed_at=10.0), 1.0)
    assert first_failure(GLOO_ERROR, near).text == "rank 2 failed: MemoryError: sooner"


def test_a_rank_that_has_only_lost_another_is_no_cause_though_it_has_hung_up(lines):
    near, far = lines
    say_last_words(far[0], GLOO_ERROR)
    far[0].close()
    far[1].close()
    assert first_failure(lost(1, LineLost("it has hung up")), near).text == "rank 2 is lost: it has hung up"


def test_an_own_failure_is_named_at_once(lines):
    near, far = lines
    say_last_words(far[0], GLOO_ERROR)
    started = time.monotonic()
    assert first_failure(ValueError("own"), near, grace_s=60.0).text == "ValueError: own"
    assert time.monotonic() - started < 10.0


def test_where_nobody_else_has_failed_the_failure_is_ones_own(lines):
    near, _ = lines
    assert "Connection closed by peer" in first_failure(GLOO_ERROR, near, grace_s=0.1).text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GLOO_ERROR, True),
        (LineLost("it has hung up"), True),
        (EngineDead("rank 0 is lost"), True),
        (RuntimeError("shapes do not match"), False),
        (MemoryError(), False),
        (ModelLoadError("no tensor"), False),
    ],
)
def test_only_errors_that_tell_of_another_ranks_end_are_consequences(error, expected):
    assert is_consequence(error) is expected
