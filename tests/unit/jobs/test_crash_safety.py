"""A job that loses power at any operation, and is run again, ends with the same bytes."""

import gc
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayinfer.jobs.interfaces import JobError
from rayinfer.jobs.parameters import job_parameters
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.verify import verify_job
from support.fakes.fake_job import MemoryJob, NumberedRows
from support.fakes.power_cut_disk import PowerCut, PowerCutDisk
from support.jobs.copy_job import contents, copy_job

OUTPUTS = ["out.jsonl", "out.jsonl.gz", "parts.jsonl/"]


@pytest.fixture
def input_path(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"id": "r{n}", "prompt": "{"x" * n}"}}\n' for n in range(11)))
    return path


@pytest.fixture
def undisturbed(input_path, tmp_path):
    def run(output: str) -> tuple[dict[str, bytes], int]:
        root = tmp_path / "undisturbed"
        root.mkdir()
        disk = PowerCutDisk(root)
        copy_job(input_path, root, output, disk)
        return contents(root), len(disk.operations)

    return run


@pytest.mark.parametrize("loses_unsynced", [True, False], ids=["power cut", "killed"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_job_cut_at_any_operation_ends_with_the_bytes_of_an_undisturbed_one(
    output, loses_unsynced, input_path, undisturbed, tmp_path
):
    expected, num_operations = undisturbed(output)
    assert num_operations > 30
    for cut_at in range(1, num_operations + 1):
        root = tmp_path / f"cut-{cut_at}"
        root.mkdir()
        disk = PowerCutDisk(root, cut_at)
        with pytest.raises(PowerCut):
            copy_job(input_path, root, output, disk)
        if loses_unsynced:
            disk.lose_unsynced()
        copy_job(input_path, root, output, PowerCutDisk(root))
        assert contents(root) == expected, f"cut at operation {cut_at}: {disk.operations[-1]}"
        assert verify_job(open_source(input_path), f"{root}/{output}", ProgressFolder(root / "progress")).is_right


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_job_cut_again_and_again_ends_with_the_same_bytes(output, input_path, undisturbed, tmp_path):
    expected, num_operations = undisturbed(output)
    chance = random.Random(0)
    for attempt in range(15):
        root = tmp_path / f"attempt-{attempt}"
        root.mkdir()
        for _ in range(100):
            disk = PowerCutDisk(root, chance.randint(1, num_operations // 2))
            try:
                copy_job(input_path, root, output, disk)
                break
            except PowerCut:
                if chance.random() < 0.5:
                    disk.lose_unsynced()
        assert contents(root) == expected


def test_a_torn_checkpoint_gives_way_to_the_one_before(input_path, tmp_path):
    root = tmp_path / "torn"

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        copy_job(input_path, root, "out.jsonl.gz", Disk(), before_finalize=fail)
    checkpoints = sorted((root / "progress").glob("checkpoint-*"))
    assert len(checkpoints) == 2
    checkpoints[-1].write_bytes(checkpoints[-1].read_bytes()[:-7])
    assert ProgressFolder(root / "progress").load().rows_finished == 9
    copy_job(input_path, root, "out.jsonl.gz", Disk())
    assert verify_job(open_source(input_path), root / "out.jsonl.gz", ProgressFolder(root / "progress")).is_right


def test_an_unfinished_output_that_is_shorter_than_its_checkpoint_is_refused(input_path, tmp_path):
    sink = open_sink(tmp_path / "out.jsonl")
    sink.open(None)
    sink.write([{"id": "1"}])
    offset = sink.flush()
    sink.close()
    next(tmp_path.glob(".out.jsonl.partial-*")).write_bytes(b"")
    with pytest.raises(JobError, match="fewer than the 11 of the checkpoint"):
        open_sink(tmp_path / "out.jsonl").open(offset)


@dataclass
class NextLease:
    """Lease of one copy after another; the one before may run still, or not."""

    fencing_token: int
    predecessor_may_run: bool

    def check(self) -> None:
        pass

    def release(self) -> None:
        pass


def shuffled_job(root: Path, output: str, disk: Disk, *, lease: NextLease, period_rows: int) -> MemoryJob:
    """Make a job over rows that end out of order, with its output and progress on a disk."""
    rows = NumberedRows(30, errors=frozenset({11}), prompt=lambda index: "x" * (1 + index * 7 % 30))
    job = MemoryJob(rows, sink=open_sink(f"{root}/{output}", rows_per_part=4, disk=disk), lease=lease)
    job.progress = ProgressFolder(root / "progress", disk)
    job.parameters = job_parameters(checkpointing={"period_rows": period_rows}, window={"rows": 16})
    return job


@pytest.fixture
def quick_collections():
    """Take what was there before the jobs out of their garbage collections."""
    gc.freeze()


@pytest.mark.faults
def test_copies_that_die_one_after_the_other_end_with_the_same_bytes(quick_collections, tmp_path):
    output, chance, num_kept = "out.jsonl.gz", random.Random(1), 0
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    shuffled_job(undisturbed, output, Disk(), lease=NextLease(1, False), period_rows=5).run()
    for attempt in range(5):
        root = tmp_path / f"attempt-{attempt}"
        root.mkdir()
        for token in range(1, 200):
            disk = PowerCutDisk(root, chance.randint(5, 90))
            lease = NextLease(token, chance.random() < 0.3)
            # Checkpoints are at other rows each time, as they are by seconds.
            job = shuffled_job(root, output, disk, lease=lease, period_rows=chance.randint(1, 9))
            try:
                job.run()
                break
            except PowerCut:
                num_kept += bool(job.progress.load_rows_ahead())
                if chance.random() < 0.5:
                    disk.lose_unsynced()
        assert contents(root) == contents(undisturbed)
        assert not [name for name in job.progress.store.names() if name.startswith("rows-ahead")]
    assert num_kept > 3
