"""A dry run, and what is made of figures."""

import json
from dataclasses import replace

import pytest

from rayinfer.benchmark.gpu.cases import CASES
from rayinfer.benchmark.gpu.deadline import Deadline, OutOfTime
from rayinfer.benchmark.gpu.gpu_report import Row, judge, new_row
from rayinfer.benchmark.gpu.step_gaps import Activity, step_gap_us
from rayinfer.benchmark.gpu.suite import run_gpu_benchmark
from rayinfer.errors import ConfigError


def test_a_dry_run_measures_checks_and_keeps_everything(tmp_path):
    report = run_gpu_benchmark(tmp_path, print, is_dry_run=True, only=["B1", "B3", "B7", "B12"])
    assert [row.error for row in report.rows] == [""] * 4
    assert all(check.is_right for check in report.checks)
    assert len(report.checks) == 4
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["name"] for row in kept["rows"]] == ["B1", "B3", "B7", "B12"]
    assert all(row["seconds"] for row in kept["rows"])
    assert "A dry run" in (tmp_path / "gpu.md").read_text()
    assert (tmp_path / "gpu.svg").read_text().count('class="blue"') == 3


def test_cases_after_the_deadline_are_left_out_and_named(tmp_path):
    report = run_gpu_benchmark(tmp_path, print, is_dry_run=True, only=["B1", "B10"], limit_s=0.0)
    assert [row.error for row in report.rows] == ["left out: the 0 s of this run are over"] * 2
    assert [each.partition(":")[0] for each in report.shortened] == [
        "checks in bfloat16",
        "checks in float32",
        "B1",
        "B10",
    ]
    assert "**Not everything was measured, out of time:**" in (tmp_path / "gpu.md").read_text()


def test_the_first_run_is_always_made_and_repeats_end_at_the_deadline():
    now = 0.0
    deadline, numbers = Deadline(10.0, lambda: now), []
    for number in deadline.runs(5):
        numbers.append(number)
        now += 4.0
    assert numbers == [0, 1, 2]
    assert list(deadline.runs(5)) == [0]
    with pytest.raises(OutOfTime, match="the 10 s of this run are over"):
        deadline.check()


def test_without_a_gpu_only_a_dry_run_is_made(tmp_path):
    with pytest.raises(ConfigError, match="there is no GPU here"):
        run_gpu_benchmark(tmp_path, print)


def test_an_unknown_workload_is_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no workload B99: choose from B1, "):
        run_gpu_benchmark(tmp_path, print, is_dry_run=True, only=["B99"])


def row_of(name: str, **figures: object) -> Row:
    return replace(new_row(next(case for case in CASES if case.name == name)), **figures)


@pytest.mark.parametrize(
    ("name", "figures", "is_done"),
    [
        ("B1", {"share": 0.56}, True),
        ("B1", {"share": 0.54}, False),
        ("B1", {"share": 0.9, "error": "it broke"}, None),
        ("B3", {"seconds": [0.00119]}, True),
        ("B3", {"seconds": [0.00121]}, False),
        ("B1 fp8 KV", {"seconds": [1.0]}, True),
        ("B1 fp8 KV", {"seconds": [1.4]}, False),
        ("B12", {"seconds": [0.1]}, None),
    ],
)
def test_goals(name, figures, is_done):
    row = row_of(name, **figures)
    judge(row, [row_of("B1", seconds=[1.7]), row])
    assert row.is_done is is_done


def test_the_pause_between_steps_is_separated_from_pauses_inside():
    step = [("attention", 2.0), ("product", 1.0), ("attention", 2.0), ("sample", 3.0), ("copy", 1.0), ("copy", 40.0)]
    activities, at = [], 0.0
    for name, pause in step * 10:
        activities.append(Activity(at, at + 5.0, name))
        at += 5.0 + pause
    assert step_gap_us(activities, 10) == pytest.approx(40.0)
    assert step_gap_us(activities[:3], 10) is None
