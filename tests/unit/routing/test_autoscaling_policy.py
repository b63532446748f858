import pytest

from rayinfer.errors import ConfigError
from rayinfer.routing.autoscaling_policy import ModelLoad, ScalingPolicy
from rayinfer.routing.autoscaling_settings import AutoscalingSettings, autoscaling_settings
from rayinfer.routing.first_tokens import WINDOW_S, FirstTokenCounts

SETTINGS = {
    "min_replicas": 1,
    "max_replicas": 4,
    "target_waiting_tokens": 1000,
    "upscale_delay_s": 2.0,
    "downscale_delay_s": 60.0,
    "idle_timeout_s": 30.0,
}
BUSY = FirstTokenCounts(num_started=20)


class Service:
    """Engines that come as soon as they are wanted, and a clock that goes by seconds."""

    def __init__(self, num_engines=1, **settings):
        self.count = ScalingPolicy(AutoscalingSettings(**SETTINGS | settings))
        self.target = self.num_engines = num_engines
        self.now = 0.0
        self.changes = []

    def go_on(self, seconds, *, starts=True, **load):
        """Have a load for so long; returns the number of engines that is wanted then."""
        for _ in range(int(seconds)):
            known = ModelLoad(num_engines=self.num_engines, **{"max_num_seqs": 10} | load)
            wanted = self.count.decide(self.now, self.target, known)
            if wanted != self.target:
                self.changes.append(wanted - self.target)
            self.target = wanted
            self.num_engines = wanted if starts or wanted < self.num_engines else self.num_engines
            self.now += 1.0
        return self.target


def waiting(tokens, requests=10, **counts):
    return FirstTokenCounts(num_waiting=requests, waiting_tokens=tokens, **counts)


def test_prompts_that_wait_bring_as_many_engines_as_they_need():
    service = Service()
    assert service.go_on(2, first_tokens=waiting(2500)) == 1  # not yet
    assert service.go_on(1, first_tokens=waiting(2500)) == 3


def test_a_moments_backlog_brings_none():
    service = Service()
    for _ in range(20):
        service.go_on(1, first_tokens=waiting(3000))
        service.go_on(2, first_tokens=BUSY, num_running=2)
    assert service.changes == []


def test_one_long_prompt_brings_none_for_no_engine_could_share_it():
    assert Service().go_on(30, first_tokens=waiting(8000, requests=1), num_running=1) == 1


def test_full_caches_and_full_batches_bring_another_engine():
    assert Service().go_on(5, cache_usage=0.9) == 2
    assert Service().go_on(5, num_running=9) == 2
    assert Service().go_on(5, cache_usage=0.8, num_running=8) == 1


def test_missing_the_objective_brings_another_engine_and_waits_for_what_that_changes():
    service = Service()
    late = {"first_tokens": FirstTokenCounts(num_started=20, num_late=4), "num_running": 3}
    assert service.go_on(WINDOW_S, **late) == 1  # what came late may have come late without this engine
    assert service.go_on(5, **late) == 2
    assert service.go_on(WINDOW_S - 5, **late) == 2
    assert service.go_on(8, **late) == 3


def test_one_late_request_is_an_accident():
    assert Service().go_on(60, first_tokens=FirstTokenCounts(num_started=3, num_late=1), num_running=1) == 1


def test_there_are_never_more_than_allowed():
    assert Service().go_on(60, first_tokens=waiting(10**6)) == 4


def test_engines_that_start_are_waited_for():
    service = Service()
    service.go_on(5, starts=False, first_tokens=waiting(1500))
    assert service.go_on(300, starts=False, first_tokens=waiting(1500)) == 2


def test_an_engine_goes_once_the_others_could_have_held_the_load_all_through_the_delay():
    service = Service(num_engines=2)
    service.go_on(30, num_running=9, first_tokens=BUSY)
    assert service.go_on(59, num_running=3, first_tokens=BUSY) == 2
    assert service.go_on(3, num_running=3, first_tokens=BUSY) == 1


def test_no_engine_goes_that_the_others_could_not_stand_in_for():
    # One engine runs ten requests at once, of which 8.5 may be in use; 0.8 of these are 6.8.
    assert Service(num_engines=2).go_on(600, num_running=8, first_tokens=BUSY) == 2
    assert Service(num_engines=2).go_on(600, num_running=6, first_tokens=BUSY) == 1


def test_what_one_engine_did_not_hold_brings_no_second_attempt():
    service = Service(num_engines=1)
    late = FirstTokenCounts(num_started=20, num_late=10)
    service.go_on(20, num_running=4, first_tokens=late)
    assert service.target > 1
    reached = service.target
    assert service.go_on(600, num_running=4 * reached, first_tokens=BUSY) == reached
    assert service.go_on(600, num_running=4, first_tokens=BUSY) == 2  # 4 is all that one was seen to hold
    assert service.go_on(300, num_running=2, first_tokens=BUSY) == 1


def test_a_load_that_swings_faster_than_the_delay_moves_nothing_after_the_first_time():
    service = Service()
    for _ in range(30):
        service.go_on(10, first_tokens=waiting(1800), num_running=5)
        service.go_on(30, first_tokens=BUSY, num_running=1)
    assert service.changes == [1]


def test_without_every_engines_word_none_goes():
    service = Service(num_engines=2)
    assert service.go_on(300, is_complete=False) == 2
    assert service.go_on(61) == 1


def test_nothing_is_decided_while_engines_are_paused():
    service = Service(num_engines=2)
    late = waiting(10**5, num_late=10)
    assert service.go_on(300, is_suspended=True, first_tokens=late) == 2
    assert service.go_on(59) == 2  # the delay begins anew


def test_the_last_engine_goes_only_where_that_is_allowed_and_after_idleness():
    assert Service().go_on(1000) == 1
    service = Service(min_replicas=0)
    assert service.go_on(29) == 1
    service.go_on(1, first_tokens=FirstTokenCounts(num_started=1))
    assert service.go_on(29) == 1
    assert service.go_on(2) == 0


def test_idle_engines_go_one_way_down_and_the_last_by_its_own_delay():
    service = Service(num_engines=3, min_replicas=0, idle_timeout_s=100.0)
    service.go_on(20, num_running=20, first_tokens=BUSY)
    assert service.go_on(90) == 1
    assert service.go_on(20) == 0


def test_a_request_brings_the_first_engine_and_an_engine_that_starts_stays_wanted():
    service = Service(num_engines=0, min_replicas=0)
    assert service.go_on(5) == 0
    assert service.go_on(1, starts=False, first_tokens=waiting(10, requests=1)) == 1
    assert service.go_on(100, starts=False) == 1


def test_a_backlog_without_an_engine_brings_as_many_as_it_takes_at_once_and_more_as_it_grows():
    service = Service(num_engines=0, min_replicas=0, max_replicas=4)
    assert service.go_on(1, starts=False, first_tokens=waiting(10, requests=1)) == 1
    assert service.go_on(1, starts=False, first_tokens=waiting(2500)) == 3
    assert service.go_on(1, starts=False, first_tokens=waiting(10**6)) == 4
    assert service.go_on(1, starts=False, first_tokens=waiting(10, requests=1)) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "max_replicas"),
        ({"max_replicas": 2, "min_replicas": 3}, "min_replicas=3 is more than max_replicas=2"),
        ({"max_replicas": 2, "initial_replicas": 3}, "initial_replicas=3 does not lie between"),
        ({"max_replicas": 2, "min_replica": 1}, "min_replica"),
        ({"max_replicas": 2, "attainment": 1.0}, "attainment"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, said):
    with pytest.raises(ConfigError, match=said):
        autoscaling_settings(settings)


def test_a_model_that_may_have_no_engine_begins_with_one():
    assert autoscaling_settings({"min_replicas": 0, "max_replicas": 3}).first_replicas == 1
    assert autoscaling_settings({"min_replicas": 2, "max_replicas": 3}).first_replicas == 2


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"first_tokens": waiting(2500)}, "2500 prompt tokens wait, 1000 an engine may"),
        ({"num_running": 9}, "engines are 90% full, 85% is the target"),
    ],
)
def test_a_decision_has_its_reason(load, reason):
    service = Service()
    service.go_on(3, **load)
    assert (service.target > 1, service.count.reason) == (True, reason)


def test_a_missed_objective_and_an_idle_engine_are_reasons():
    service = Service()
    service.go_on(WINDOW_S + 5, first_tokens=FirstTokenCounts(num_started=20, num_late=4), num_running=3)
    assert service.count.reason == "20% of first tokens came after 2 s, 5% may"
    assert service.go_on(200) == 1
    assert service.count.reason == "1 would have held the load of the last 60 s"
