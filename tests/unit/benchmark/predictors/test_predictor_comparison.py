import json

import pytest
from typer.testing import CliRunner

from rayinfer.benchmark.predictors.in_process import measure_faults
from rayinfer.benchmark.predictors.passages import passages
from rayinfer.benchmark.predictors.predictor_report import PredictorReport, goal_rows
from rayinfer.benchmark.predictors.row_results import RowResult
from rayinfer.benchmark.predictors.rows import ROWS
from rayinfer_deployments.cli import build_application

ENVIRONMENT = {"cpu_model": "a processor", "commit": "c" * 40}


def row_result(row, **figures):
    """A row with one run for each system, whose name has underscores for spaces."""
    result = RowResult(
        row=row,
        date="2026-01-01",
        command="rayinfer bench predictors",
        environment=ENVIRONMENT,
        cpu_flags=[],
        num_threads=2,
        rounds=1,
    )
    for system, runs in figures.items():
        result.add(system.replace("_", " "), runs)
    return result


def test_rows_are_kept_when_others_are_measured(tmp_path):
    texts = row_result("texts", rayinfer={"texts_s": 130.0}, onnxruntime_sorted={"texts_s": 100.0})
    PredictorReport(tmp_path).put(texts)
    report = PredictorReport(tmp_path)
    report.put(row_result("identical", rayinfer={"computed": 2.0}))
    assert list(json.loads(report.json_file.read_text())) == ["texts", "identical"]
    markdown = report.markdown_file.read_text()
    assert "real texts in arrival order" in markdown
    assert "64 identical requests" in report.svg_file.read_text()


def test_goals_are_met_missed_or_not_measured():
    results = {
        "texts": row_result("texts", rayinfer={"texts_s": 130.0}, onnxruntime_sorted={"texts_s": 100.0}),
        "identical": row_result("identical", rayinfer={"computed": 2.0}),
        "http": row_result("http", HTTP={"p50_ms": 9.0, "p99_ms": 17.0}, model_alone={"p50_ms": 5.5, "p99_ms": 6.0}),
    }
    found = {(row, text): (value, met) for _, row, text, _, value, met in goal_rows(results)}
    assert found["texts", "over the better of ONNX Runtime and OpenVINO, sorted"] == (1.3, "yes")
    assert found["texts", "over sentence-transformers"] == (None, "not measured")
    assert found["identical", "computations"] == (2.0, "**no**")
    assert found["http", "ms above the model alone, p50"] == (3.5, "yes")


def test_every_row_has_goals():
    assert all(row.goals for row in ROWS.values())


async def test_an_item_at_fault_costs_no_other_one():
    found = await measure_faults()
    assert {name: figures["right"] for name, figures in found.items()} == dict.fromkeys(found, 31)
    assert set(found) == {"exception", "NaN", "too long"}
    assert found["exception"]["runs"] <= 11


def test_texts_are_the_same_for_one_seed():
    assert passages(20) == passages(20)
    assert passages(20, seed=1) != passages(20)


@pytest.mark.parametrize(
    ("options", "message"), [(["--rows", "texts,x"], "rows must be"), (["--clients", "0"], "clients must be")]
)
def test_wrong_options_are_one_line(options, message):
    result = CliRunner().invoke(build_application(), ["bench", "predictors", *options])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
