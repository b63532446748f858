"""A job whose disk is full stops with a clear error, and goes on when there is room."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.jobs

# In a mount namespace of its own, whose disk is gone with the process.
SCRIPT = """
import pathlib, subprocess, sys
from rayinfer.jobs.interfaces import JobError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.verify import verify_job
from support.jobs.copy_job import contents, copy_job

input_path, small, large, output = map(pathlib.Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", small], check=True)
filler = small / "filler"
filler.write_bytes(bytes(13 << 20))
stops = 0
while True:
    try:
        copy_job(input_path, small, str(output), Disk())
        break
    except JobError as error:
        assert "No space left on device" in str(error) or "disk is full" in str(error), error
        print(error)
        stops += 1
        filler.unlink()  # a second failure is one too many
assert stops == 1
copy_job(input_path, large, str(output), Disk())
assert contents(small) == contents(large)
verified = verify_job(open_source(input_path), small / output, ProgressFolder(small / "progress"))
assert verified.is_right, verified.problems
"""


@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.gz", "parts.jsonl", "out.sqlite"])
def test_a_job_on_a_full_disk_stops_and_goes_on_later(output, tmp_path):
    noise = "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(100_018))  # which gzip does not shrink much
    with (tmp_path / "in.jsonl").open("w", encoding="utf-8") as file:
        for number in range(18):
            file.write(f'{{"id":"r{number}","text":"{noise[number:]}"}}\n')
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", SCRIPT]
    paths = [tmp_path / "in.jsonl", tmp_path / "small", tmp_path / "large"]
    location = f"{output}/" if output == "parts.jsonl" else output
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, *paths, location], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
