import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rayinfer.kv_store.store_files import list_stores, shrink_unused

TESTS = Path(__file__).parents[2]


@pytest.fixture
def memory_folder():
    """Make a folder in shared memory, where the system has any; what the test leaves there is an error."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="rayinfer-test-", dir=parent))
    yield folder
    shrink_unused(folder, 0)
    folder.rmdir()


def test_a_hundred_killed_writers_leave_no_wrong_block_lock_or_memory(memory_folder, tmp_path):
    folders = [memory_folder, tmp_path]
    command = [sys.executable, "-m", "support.faults.killed_writers", *map(str, folders), "100"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] == 100
    assert seen["right"] > 100
    assert "wrong" not in seen
    assert (seen["is_lock_free"], seen["written"]) == (True, 2)
    assert seen["files"] == [["store.kv", "store.lock"]] * 2
    assert max(seen["bytes"]) <= seen["max_bytes"]
    assert not any(store.is_in_use for folder in folders for store in list_stores(folder))
