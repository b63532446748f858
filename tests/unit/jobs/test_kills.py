"""Jobs that are killed at durable operations, and go on: the output is that of an undisturbed run, to the byte."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama

SCRIPT = Path(__file__).parents[2] / "support" / "faults" / "job_kills.py"
NUM_ROWS = 60


class KilledJob:
    """Job over a small model, sampled at temperature 0.8 in float32."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = str(make_tiny_llama(folder / "model"))
        lines = [json.dumps({"prompt": f"row {number} " * (1 + number % 5), "n": number}) for number in range(NUM_ROWS)]
        lines[7] = "no JSON"
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")

    def run(self, name: str, *points: object) -> list[dict[str, object]]:
        """Run the job once for each point of death, one after the other."""
        settings = {
            "input": str(self.folder / "in.jsonl"),
            "output": str(self.folder / f"{name}.jsonl"),
            "model": self.model,
            "sampling": {"temperature": 0.8, "max_tokens": 6, "ignore_eos": True},
            "engine": {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 256, "max_num_seqs": 4},
            "parameters": {"checkpointing": {"period_rows": 5}, "window": {"rows": 16}, "base_seed": 3},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(settings))
        command = [sys.executable, str(SCRIPT), str(path), *map(str, points)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        runs: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
        assert all(run["end"] != "failed" for run in runs), done.stderr
        return runs

    def output(self, name: str) -> bytes:
        """Return a job's output."""
        return (self.folder / f"{name}.jsonl").read_bytes()


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> KilledJob:
    return KilledJob(tmp_path_factory.mktemp("killed"))


def check_kills(job: KilledJob, points: list[int], name: str) -> bool:
    """Kill a job at each point in turn, let it end, and compare the output; returns whether it was killed at all.

    Its pace decides what it keeps beside a checkpoint, so a run may end some operations before a point.
    """
    runs = job.run(name, *points, "never", "never")
    assert [run["end"] for run in runs[-2:]] == ["done", "done"], runs
    assert job.output(name) == job.output("undisturbed")
    rows = [json.loads(line) for line in job.output(name).splitlines()]
    assert [row["id"] for row in rows] == [str(number) for number in range(NUM_ROWS)]
    return any(run["end"] == "killed" for run in runs)


def test_killed_jobs_end_with_the_bytes_of_an_undisturbed_one(job):
    (undisturbed,) = job.run("undisturbed", "never")
    total = undisturbed["operations"]
    assert undisturbed["end"] == "done"
    assert total > 30
    # In the middle, in the end of what is left after it, and as the last operations of all.
    assert check_kills(job, [total // 2, total // 3, 14, 5], "killed")


@pytest.mark.faults
def test_jobs_killed_at_twenty_random_points(job):
    (undisturbed,) = job.run("undisturbed-2", "never")
    job.run("undisturbed", "never")
    total = undisturbed["operations"]
    random_points = random.Random(5).sample(range(1, total), 12)
    last = [total - back for back in range(8)]  # finalize, commit record, clean-up
    for number, point in enumerate([*random_points, *last]):
        earlier = range(point, max(point - 12, 0), -3)
        assert any(check_kills(job, [each], f"killed-{number}-{each}") for each in earlier), (point, total)
