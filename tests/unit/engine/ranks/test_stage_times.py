"""Idle time of pipeline stages, also while steps are in flight."""

import pytest

from rayinfer.engine.ranks.timed_group import StageTimes
from support.fakes.fake_executor import drive


def test_a_stage_is_idle_for_what_it_does_not_compute_of_the_time_in_which_there_is_work():
    times = StageTimes(2)
    assert times.idle_shares(5.0) == [0.0, 0.0]  # nothing was asked of them
    times.start(10.0)
    times.add(0, 3.0)
    times.add(1, 1.0)
    times.start(12.0)  # another step, the first one still being under way
    assert times.idle_shares(14.0) == pytest.approx([0.25, 0.75])
    times.stop(14.0)
    times.stop(20.0)
    assert times.idle_shares(100.0) == pytest.approx([0.25, 0.75])  # rest is no idling


def test_an_engine_reports_the_idle_share_of_its_stages():
    driven = drive()
    assert driven.engine.stats.stage_idle_shares == []
    driven.executor.stage_idle_shares = [0.5, 0.25]
    assert driven.engine.stats.stage_idle_shares == [0.5, 0.25]
