import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rayinfer.kv_store.store_files import list_stores, shrink_unused

TESTS = Path(__file__).parents[2]


def on_a_disk(tmp_path):
    return tmp_path


def in_shared_memory(tmp_path):
    if not os.access("/dev/shm", os.W_OK):
        return tmp_path
    return Path(tempfile.mkdtemp(prefix="rayinfer-test-", dir="/dev/shm"))


@pytest.mark.parametrize("choose_folder", [on_a_disk, in_shared_memory])
def test_a_hundred_killed_writers_leave_no_wrong_block_lock_or_memory(choose_folder, tmp_path):
    folder = choose_folder(tmp_path)
    try:
        command = [sys.executable, "-m", "support.faults.killed_writers", str(folder), "100"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, timeout=120)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["kills"] == 100
        assert seen["right"] > 100
        assert "wrong" not in seen
        assert (seen["is_lock_free"], seen["written"]) == (True, 2)
        assert seen["files"] == ["disk.kv", "disk.lock", "memory.kv", "memory.lock"]
        assert max(seen["bytes"]) <= seen["max_bytes"]
        assert not any(store.is_in_use for store in list_stores(folder))
    finally:
        shrink_unused(folder, 0)
        if folder != tmp_path:
            left = list(folder.iterdir())
            folder.rmdir()
            assert left == []
