import json
from dataclasses import dataclass

import pytest

from rayinfer.benchmark.report import (
    Table,
    describe_environment,
    format_figure,
    percentiles,
    write_json,
    write_markdown,
)


def test_percentiles_are_in_milliseconds_and_interpolate():
    spread = percentiles([0.004, 0.001, 0.002, 0.003])
    assert (spread.mean, spread.p50, spread.max, spread.count) == (2.5, 2.5, 4.0, 4)
    assert spread.p95 == pytest.approx(3.85)
    assert spread.p99 == pytest.approx(3.97)


def test_one_sample_is_every_percentile():
    spread = percentiles([0.25])
    assert {spread.mean, spread.p50, spread.p95, spread.p99, spread.max} == {250.0}


def test_no_samples_have_no_percentiles():
    assert percentiles([]) is None


def test_the_environment_names_versions_and_the_machine():
    environment = describe_environment()
    assert {"python", "torch", "transformers", "ray"} <= set(environment.versions)
    assert environment.num_cpus >= 1
    assert environment.commit is None or len(environment.commit.removesuffix("+")) == 40


@dataclass(frozen=True)
class Result:
    name: str
    spread: object


def test_json_holds_the_whole_report(tmp_path):
    write_json(Result("one", percentiles([0.001, 0.003])), tmp_path / "new" / "result.json")
    content = json.loads((tmp_path / "new" / "result.json").read_text())
    assert content["name"] == "one"
    assert content["spread"]["p50"] == 2.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.678, "12,346"), (0.123456, "0.1235"), (1234567, "1,234,567"), ("text", "text"), (None, "-")],
)
def test_figures_are_written_for_people(value, text):
    assert format_figure(value) == text


def test_tables_are_written_with_aligned_columns(tmp_path):
    tables = [Table("costs", ("name", "ms"), [("router", 1234.5), ("proxy", None)])]
    write_markdown(tmp_path / "new" / "costs.md", "Title", tables, "a note")
    lines = (tmp_path / "new" / "costs.md").read_text().splitlines()
    assert lines[:3] + lines[8:] == ["# Title", "", "costs", "", "a note"]
    assert lines[4:8] == ["| name   | ms    |", "| ------ | ----- |", "| router | 1,234 |", "| proxy  | -     |"]
