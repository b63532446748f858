"""A job that loses power at any operation, and is run again, ends with the same bytes."""

import random

import pytest

from rayinfer.jobs.interfaces import JobError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.verify import verify_job
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
