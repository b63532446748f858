import json

import pytest

from rayinfer.benchmark.offline.structured import endless_schemas, large_schema, run_structured_benchmark
from rayinfer.grammars.grammar_checks import GrammarChecks
from rayinfer.grammars.spec import StructuredOutputsParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_its_schemas_compile_and_the_large_one_is_large():
    checks = GrammarChecks()
    for schema in (*endless_schemas(), large_schema(10_000)):
        checks.check(StructuredOutputsParams(json=schema))
    assert 10_000 <= len(json.dumps(large_schema(10_000), separators=(",", ":"))) < 11_500


def test_answers_with_and_without_grammars_are_compared(tmp_path):
    report = run_structured_benchmark(
        str(make_tiny_llama(tmp_path / "model")),
        {"num_kv_blocks": 64, "dtype": "float32", "num_threads": 1},
        [1, 3],
        num_tokens=8,
        num_rounds=2,
        temperature=1.0,
        command="command",
        log=lambda text: None,
    )
    assert [result.num_streams for result in report.results] == [1, 3]
    for result in report.results:
        least, most = result.range
        assert least <= result.slower <= most
        assert result.slower == pytest.approx(result.free_tok_s / result.constrained_tok_s - 1, abs=most - least + 0.01)
    assert report.schema_bytes >= 10_000
    assert all(milliseconds > 0 for milliseconds in report.compile_ms)
    assert [len(table.rows) for table in report.tables()] == [2, 1]
