import pytest

from rayinfer.routing.canary.judgement import VersionCounts, rollback_reason
from rayinfer.routing.canary.settings import CanarySettings

SETTINGS = CanarySettings(model="new", share=0.2, min_requests=10)
GOOD = VersionCounts(num_finished=100, num_errors=0, num_first_tokens=100, first_tokens_s=10.0)


def counts(num=20, errors=0, ttft_s=0.1):
    return VersionCounts(num, errors, num, num * ttft_s)


@pytest.mark.parametrize(
    ("canary", "stable", "reason"),
    [
        (counts(), GOOD, ""),
        (counts(errors=2), GOOD, "10.0% of 20 requests failed"),
        (counts(errors=1), GOOD, ""),  # 5 % more is allowed
        (counts(num=9, errors=9), GOOD, ""),  # too few
        (counts(errors=4), counts(num=100, errors=20), ""),  # as many fail on the stable version
        (counts(ttft_s=0.25), GOOD, "mean TTFT 250 ms over 20 requests, stable 100 ms"),
        (counts(ttft_s=0.19), GOOD, ""),
        (counts(ttft_s=9.0), counts(num=9), ""),  # nothing to compare with yet
    ],
)
def test_a_canary_ends_when_it_fails_more_or_answers_later(canary, stable, reason):
    found = rollback_reason(SETTINGS, canary, stable)
    assert found.startswith(reason) if reason else found == ""


def test_bounds_can_be_switched_off():
    settings = SETTINGS.model_copy(update={"max_error_rate": None, "max_ttft_ratio": None})
    assert rollback_reason(settings, counts(errors=20, ttft_s=9.0), GOOD) == ""
