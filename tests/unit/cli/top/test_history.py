import pytest

from rayinfer_deployments.cli.top.history import WINDOW, ModelHistory, percentile

BOUNDS = [0.1, 0.2, 0.4]


def sample(*, tokens=0, prompts=0, cached=0, engines=("e1",), migrations=0, counts=(0, 0, 0, 0), **more):
    histogram = {"bounds": BOUNDS, "counts": list(counts)}
    return {
        "ready": True,
        "reason": None,
        "waiting": 0,
        "generation_tokens": tokens,
        "prompt_tokens": prompts,
        "cached_prompt_tokens": cached,
        "migrations": migrations,
        "rejected": {},
        "first_token": histogram,
        "inter_token": histogram,
        "engines": {name: {"state": "running"} for name in engines},
        **more,
    }


def test_rates_and_shares_cover_the_window():
    history = ModelHistory()
    for second in range(30):
        history.add(
            float(second), sample(tokens=second * 5, prompts=second * 4, cached=second, counts=(second, 0, 0, 0))
        )
    assert len(history.samples) == WINDOW + 1
    assert history.rate("generation_tokens") == 5.0
    assert history.hit_share() == 0.25
    assert history.percentiles("first_token") == [pytest.approx(0.05), pytest.approx(0.095)]
    assert list(history.rates)[-1] == 5.0


def test_the_share_of_accepted_drafts_is_that_of_engines_in_the_window():
    def drafts(**counts):
        engines = {
            name: {"state": "running", "draft_tokens": drafted, "accepted_draft_tokens": accepted}
            for name, (drafted, accepted) in counts.items()
        }
        return sample() | {"engines": engines}

    history = ModelHistory()
    history.add(0.0, drafts(e1=(100, 50), e2=(90, 9)))
    assert history.accepted_share() is None
    history.add(1.0, drafts(e1=(104, 53), e3=(4, 3)))  # one is gone, one has joined
    assert history.accepted_share() == 6 / 8
    history.add(2.0, sample())  # engines of an earlier version
    assert history.accepted_share() is None


def test_a_restarted_router_counts_from_zero():
    history = ModelHistory()
    history.add(0.0, sample(tokens=1000))
    history.add(1.0, sample(tokens=3))
    assert history.rate("generation_tokens") == 0
    history.add(0.5, sample(tokens=9))
    assert len(history.samples) == 2


def test_deaths_migrations_and_decisions_are_events():
    history = ModelHistory()
    history.add(0.0, sample(engines=("e1", "e2")))
    decision = {"time_s": 0.7, "before": 2, "after": 3, "reason": "the queue is long"}
    history.add(1.0, sample(engines=("e2", "e3"), migrations=1, scaling=[decision]))
    assert [event.text for event in history.events] == [
        "engine e1 is gone",
        "engine e3 joined",
        "1 stream migrated",
        "2 to 3 engines: the queue is long",
    ]


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.05),
        ([0, 10, 0, 0], 0.5, 0.15),
        ([0, 0, 0, 10], 0.95, 0.4),
        ([5, 5, 0, 0], 1.0, 0.2),
    ],
)
def test_percentiles_lie_within_their_bucket(counts, share, expected):
    found = percentile(BOUNDS, counts, share)
    assert found == (None if expected is None else pytest.approx(expected))
