"""Leases: one copy of a job at a time, and no writes of a copy that was taken for dead."""

import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import pytest

from rayinfer.jobs.interfaces import JobRunning, LeaseLost, Progress
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.progress.lease import acquire_lease, is_held, read_lease
from rayinfer.jobs.progress.status import read_status
from rayinfer.jobs.sinks.formats import open_sink
from support.services.polling import until

LEASE_OF_PROCESS = """
import sys, time
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.progress.lease import acquire_lease
acquire_lease(ProgressFolder(sys.argv[1]), "child")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    return ProgressFolder(tmp_path / "progress" if request.param == "local" else f"memory:/{tmp_path}/progress")


def late_clock(late_s):
    return lambda: time.time() + late_s


def test_a_second_copy_is_refused_and_the_message_names_the_first(folder):
    with acquire_lease(folder, "first", expiry_s=60) as lease:
        with pytest.raises(JobRunning, match=r"runs already, as first: process \d+ on \S+, last seen \d+ s ago"):
            acquire_lease(folder, "second", expiry_s=60)
        lease.check()
        assert read_status(folder).state == "running"
        folder.request_cancel()
        assert read_status(folder).state == "cancelling"
    assert read_status(folder).state == "stopped"
    with acquire_lease(folder, "second") as lease:
        assert lease.fencing_token == 2
        assert not lease.predecessor_may_run


def test_an_expired_lease_is_taken_over_and_its_holder_cannot_go_on(folder):
    old = acquire_lease(folder, "old", expiry_s=60)
    with acquire_lease(folder, "new", clock=late_clock(61)) as new:
        assert new.fencing_token == old.fencing_token + 1
        assert new.predecessor_may_run
        with pytest.raises(LeaseLost, match="another copy of the job has taken over"):
            old.check()
        new.check()
        old.release()
        new.check()


def test_a_holder_that_ended_on_this_host_is_replaced_at_once(tmp_path):
    folder = ProgressFolder(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", LEASE_OF_PROCESS, tmp_path], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(JobRunning, match=f"as child: process {child.pid}"):
            acquire_lease(folder, "second")
        child.kill()
    with acquire_lease(folder, "second") as lease:
        assert lease.fencing_token == 2
        assert not lease.predecessor_may_run


def test_a_process_with_the_number_of_an_ended_one_is_not_its_holder(folder):
    acquire_lease(folder, "first").release()
    record = replace(read_lease(folder), released=False, process_started_s=1.0)
    assert not is_held(record, record.renewed_s)
    assert is_held(replace(record, host="elsewhere"), record.renewed_s)


async def test_the_heartbeat_renews_a_lease(folder):
    with acquire_lease(folder, "first", expiry_s=0.2) as lease:
        acquired_s = read_lease(folder).renewed_s
        await until(lambda: read_lease(folder).renewed_s > acquired_s + 0.4)
        lease.check()


def test_two_copies_that_find_the_same_free_lease_do_not_both_get_it(folder):
    """The second one has read the names before the first one wrote its own."""
    store = folder.store
    names = store.names

    def names_before():
        store.names = names
        found = names()
        acquire_lease(folder, "first").release()
        return found

    store.names = names_before
    with pytest.raises(JobRunning, match="has started at this moment"):
        acquire_lease(folder, "second")


def test_a_damaged_lease_is_free(folder):
    acquire_lease(folder, "first").release()
    folder.write("lease-00000001", b"\0\0\0")
    acquire_lease(folder, "second").release()
    assert msgspec.json.decode(folder.read("lease-00000002"))["owner"] == "second"


def test_checkpoints_of_a_copy_that_was_replaced_do_not_count(folder):
    def progress(token, rows):
        return Progress(
            job_digest="d",
            rows_finished=rows,
            position=None,
            sink_offset=None,
            seed_scheme="s",
            fencing_token=token,
        )

    folder.save(progress(1, 10))
    folder.save(progress(2, 10))
    folder.save(progress(1, 20))  # late
    assert folder.load().fencing_token == 2
    for rows in range(11, 31):
        folder.save(progress(2, rows))
    assert folder.load().rows_finished == 30
    assert len([name for name in folder.store.names() if name.startswith("checkpoint-")]) == 2


@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.gz", "parts.jsonl/", "out.sqlite"])
def test_late_writes_of_a_copy_that_was_replaced_do_not_reach_the_output(output, tmp_path):
    def rows(*numbers):
        return [{"id": str(number), "text": "x" * number} for number in numbers]

    def opened(place, offset=None, **options):
        sink = open_sink(f"{tmp_path}/{place}{output}", rows_per_part=2 if output != "out.jsonl" else None)
        sink.open(offset, **options)
        return sink

    old = opened("")
    old.write(rows(1, 2, 3))
    offset = old.flush()
    new = opened("", offset, fence=True)
    new.flush()
    late = "4" if output == "parts.jsonl/" else "4, failed here and, being longer, in the way of all later rows" * 9
    old.write([{"id": late, "text": "xxxx"}])
    try:
        old.flush()
    except LeaseLost:
        assert output == "out.sqlite"
    new.write(rows(4, 5, 6, 7))
    new.flush()
    old.close()
    new.finalize()
    undisturbed = opened("undisturbed-")
    undisturbed.write(rows(1, 2, 3, 4, 5, 6, 7))
    undisturbed.finalize()
    assert _files(tmp_path, "") == _files(tmp_path, "undisturbed-")


def _files(folder, prefix):
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        is_prefixed = name.startswith("undisturbed-")
        if path.is_file() and not path.name.startswith((".", "_pending")) and is_prefixed == bool(prefix):
            found[name.removeprefix(prefix)] = path.read_bytes()
    return found
