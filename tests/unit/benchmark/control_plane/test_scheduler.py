import pytest

from rayinfer.benchmark.control_plane.scheduler import measure_churn, run_scheduler_benchmark


def test_the_control_plane_is_measured_with_and_without_a_queue():
    report = run_scheduler_benchmark(running=(3,), num_queued=5, num_steps=4, num_requests=1300, num_additions=9)
    assert [(times.num_running, times.num_queued, times.num_steps) for times in report.steps] == [(3, 0, 4), (3, 5, 4)]
    for times in report.steps:
        assert 0 < times.plan_us < times.median_us <= times.p95_us
        assert 0 < times.apply_us < times.median_us
    assert [addition.prompt_tokens for addition in report.additions] == [16, 128, 1024, 8192]
    assert all(0 < addition.median_us <= addition.p95_us for addition in report.additions)
    assert [len(table.rows) for table in report.tables()] == [2, 4, 1]
    assert report.churn.num_requests == 1300


@pytest.mark.parametrize("num_requests", [1, 700])
def test_memory_is_watched_until_every_request_has_ended(num_requests):
    ended = []
    churn = measure_churn(num_requests, ended.append)
    assert churn.num_requests == ended[-1] == num_requests
    assert churn.rss_before_bytes > 0
    assert churn.rss_after_bytes > 0
