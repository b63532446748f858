from rayinfer.benchmark.control_plane.parallel import STEP_REQUESTS, run_parallel_benchmark
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_the_control_plane_and_decoding_over_stages_are_measured(tmp_path):
    folder = make_tiny_llama(tmp_path / "llama")
    settings = {"num_threads": 1, "num_kv_blocks": 64}
    report = run_parallel_benchmark(str(folder), folder, [(1, 1), (1, 2)], batch=4, num_steps=5, **settings)
    assert [(times.num_requests, times.num_steps) for times in report.control] == [(n, 5) for n in STEP_REQUESTS]
    assert all(0 < times.median_us <= times.p95_us for times in report.control)
    one, two = report.ranks
    assert (one.stage_idle_shares, one.communication_share) == ([], 0.0)
    assert len(two.stage_idle_shares) == 2
    assert all(0 < share < 1 for share in two.stage_idle_shares)
    assert all(row.tokens_per_s > 0 and row.step_ms > 0 for row in report.ranks)
    assert [row[0] for row in report.tables()[1].rows] == ["1 x 1", "1 x 2"]
