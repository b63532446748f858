"""A dry run, and what is made of figures."""

import json
from types import SimpleNamespace

import pytest

from rayinfer.benchmark.gpu.cases import WORKS
from rayinfer.benchmark.gpu.engine_runs import LoadedEngine
from rayinfer.benchmark.gpu.results import Row, judge, new_row
from rayinfer.benchmark.gpu.step_gaps import Busy, step_gap_us
from rayinfer.benchmark.gpu.suite import START_S, run_gpu_benchmark
from rayinfer.benchmark.gpu.time_budget import Deadline, OutOfTime
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
    assert (tmp_path / "gpu.svg").read_text().count('class="bar"') == 3


def test_what_does_not_fit_into_the_time_is_left_out_and_named(tmp_path):
    said = []
    report = run_gpu_benchmark(tmp_path, said.append, is_dry_run=True, only=["B1", "B10"], limit_s=START_S + 3.0)
    assert all(row.error.startswith("left out: it needs about ") for row in report.rows)
    assert [what.partition(": ")[0] for what in report.shortened] == ["checks", "B1", "B10"]
    assert any("B1: left out: it needs about" in line for line in said)
    assert "**Not all of it was measured, for want of time:**" in (tmp_path / "gpu.md").read_text()


def test_a_step_after_the_deadline_is_not_taken():
    now = 0.0
    loaded = LoadedEngine(LongRequestEngine(), Deadline(5.0, lambda: now))
    assert loaded.step() == []
    now = 5.0
    with pytest.raises(OutOfTime):
        loaded.drain()


class LongRequestEngine:
    description = SimpleNamespace(vocab_size=512)
    num_steps_left = 100

    @property
    def has_unfinished_requests(self):
        return self.num_steps_left > 0

    def step(self):
        self.num_steps_left -= 1
        return []


def test_without_a_gpu_only_a_dry_run_is_made(tmp_path):
    with pytest.raises(ConfigError, match="there is no GPU here"):
        run_gpu_benchmark(tmp_path, print)


def test_an_unknown_workload_is_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no workload B99: choose from B1, "):
        run_gpu_benchmark(tmp_path, print, is_dry_run=True, only=["B99"])


def row_of(name: str, **figures: object) -> Row:
    row = new_row(next(work for work in WORKS if work.name == name))
    for key, value in figures.items():
        setattr(row, key, value)
    return row


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


def test_the_pause_between_steps_is_told_from_pauses_inside():
    step = [("attention", 2.0), ("product", 1.0), ("attention", 2.0), ("sample", 3.0), ("copy", 1.0), ("copy", 40.0)]
    busy, at = [], 0.0
    for name, pause in step * 10:
        busy.append(Busy(at, at + 5.0, name))
        at += 5.0 + pause
    assert step_gap_us(busy, 10) == pytest.approx(40.0)
    assert step_gap_us(busy[:3], 10) is None
