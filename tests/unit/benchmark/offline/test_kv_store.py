from rayinfer.benchmark.offline.kv_store import run_kv_store_benchmark
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_prefixes_are_found_by_other_processes_and_costs_are_compared(tmp_path):
    report = run_kv_store_benchmark(
        str(make_tiny_llama(tmp_path / "model")),
        {"num_kv_blocks": 256, "dtype": "float32", "num_threads": 1, "kv_store_gib": 0.02, "kv_store_disk_gib": 0.03},
        prefix_tokens=200,
        num_prefixes=2,
        num_requests=2,
        num_rounds=1,
        command="command",
        log=lambda text: None,
    )
    assert [each.source.split(",")[0] for each in report.prefixes] == ["computed", "shared memory", "disk", "disk"]
    assert [each.load_ms is None for each in report.prefixes] == [True, False, False, False]
    assert [cost.tiers for cost in report.costs] == ["memory", "memory and disk"]
    for cost in report.costs:
        assert cost.range == (cost.slower, cost.slower)
        assert cost.plain_tok_s > 0
    assert [len(table.rows) for table in report.tables()] == [4, 2]
