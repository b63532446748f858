import pytest

from rayinfer import LLM
from rayinfer.benchmark.offline.engine_process import EngineProcess
from rayinfer.benchmark.offline.kv_store import run_kv_store_benchmark
from rayinfer.benchmark.offline.kv_store_worker import run_prompts
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SETTINGS = {"num_kv_blocks": 256, "dtype": "float32", "num_threads": 1, "kv_store_gib": 0.02, "kv_store_persists": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def new_engine(monkeypatch):
    """Make engines in this process: others take seconds each to start."""

    class Engine(LLM):
        kernels = "kernels"

        def run(self, prompts, output_lengths, *, one_by_one):
            return run_prompts(self, prompts, output_lengths, one_by_one=one_by_one)

    def new(settings, memory):
        monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(memory))
        return Engine(**settings)

    return new


def test_prefixes_are_found_by_other_engines_and_costs_are_compared(model, new_engine):
    report = run_kv_store_benchmark(
        model,
        SETTINGS | {"kv_store_disk_gib": 0.03},
        prefix_tokens=200,
        num_prefixes=2,
        num_streams=2,
        num_requests=2,
        num_rounds=1,
        command="command",
        log=lambda text: None,
        new_engine=new_engine,
    )
    assert [each.source.split(",")[0] for each in report.prefixes] == ["computed", "shared memory", "disk", "disk"]
    assert [each.load_ms is None for each in report.prefixes] == [True, False, False, False]
    assert list(report.streams_s) == ["computed", "shared memory"]
    assert [cost.tiers for cost in report.costs] == ["none, a second engine", "memory", "memory and disk"]
    for cost in report.costs:
        assert cost.range == (cost.slower, cost.slower)
        assert cost.plain_tok_s > 0
    assert [len(table.rows) for table in report.tables()] == [4, 2, 3]


def test_a_prefix_is_found_by_another_process(model, tmp_path):
    cached = []
    for _ in range(2):
        with EngineProcess(SETTINGS | {"model": model}, tmp_path) as engine:
            cached += engine.run([list(range(5, 80))], [1], one_by_one=True)["cached"]
    assert cached == [0, 64]
