"""Jobs over Ray actors: killed workers and drivers, and resumption by other numbers of workers."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama

pytestmark = pytest.mark.faults
NUM_ROWS = 400
DRIVER = """
import json, os, signal, sys
import ray
from rayinfer.jobs.batch_job import batch_job, configure_batch_job
from rayinfer.jobs.events import STEP_FINISHED

settings, dies_at = json.loads(sys.argv[1]), int(sys.argv[3])
kills = [int(each) for each in sys.argv[2].split(",") if each]
if settings["workers"] > 1:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
inference = configure_batch_job(batch_job(**settings))
killed = []

def kill_worker(step):
    done = step.counts.ok + step.counts.errors
    workers = inference.task.workers if settings["workers"] > 1 else None
    if dies_at and done >= dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if kills and done >= kills[0] and workers.process_ids:
        victim = workers.process_ids[len(killed) % len(workers.process_ids)]
        kills.pop(0)
        killed.append(victim)
        os.kill(victim, signal.SIGKILL)

inference.events.subscribe(STEP_FINISHED, kill_worker)
result = inference.infer()
print(json.dumps({"killed": len(killed), "summary": result.summary, "rows": dict(inference.task.rows_by_worker)}))
os._exit(0)
"""


class ActorJob:
    """Job over a small model, sampled at temperature 0.8 in float32."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = str(make_tiny_llama(folder / "model"))
        lines = [json.dumps({"prompt": f"row {number} " * (1 + number % 5), "n": number}) for number in range(NUM_ROWS)]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")

    def run(self, name: str, workers: int, *, kills: list[int] | None = None, dies_at: int = 0) -> dict[str, object]:
        """Run the job; workers are killed after so many finished rows, the driver after `dies_at`."""
        settings = {
            "input": str(self.folder / "in.jsonl"),
            "output": str(self.folder / f"{name}.jsonl"),
            "model": self.model,
            "workers": workers,
            "sampling": {"temperature": 0.8, "max_tokens": 6, "ignore_eos": True},
            "engine": {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 256, "max_num_seqs": 4},
            "parameters": {"checkpointing": {"period_rows": 5}, "window": {"rows": 32}, "base_seed": 3},
        }
        points = ",".join(map(str, kills or []))
        command = [sys.executable, "-c", DRIVER, json.dumps(settings), points, str(dies_at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=560)
        if dies_at:
            assert done.returncode == -signal.SIGKILL, done.stderr
            return {}
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def output(self, name: str) -> bytes:
        """Return a job's output."""
        return (self.folder / f"{name}.jsonl").read_bytes()


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> ActorJob:
    made = ActorJob(tmp_path_factory.mktemp("actors"))
    made.run("one-worker", 1)
    return made


def test_a_job_goes_on_with_other_numbers_of_workers(job):
    job.run("elastic", 2, dies_at=100)
    job.run("elastic", 1, dies_at=200)
    result = job.run("elastic", 3)
    assert job.output("elastic") == job.output("one-worker")
    assert len(result["rows"]) == 3


def test_killed_workers_change_nothing(job):
    kills = sorted(random.Random(1).sample(range(20, NUM_ROWS - 20), 20))
    result = job.run("killed", 2, kills=kills)
    assert result["killed"] == 20
    assert job.output("killed") == job.output("one-worker")
