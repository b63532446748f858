"""Digest of an adapter's folder, whatever lies there under the names of its files."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rayinfer.kv_cache.adapter_id import CONFIG_FILE, WEIGHTS_FILE, content_digest, folder_digest
from unit.servers.adapters.conftest import pipe_in_place_of, write_adapter

FILES = (CONFIG_FILE, WEIGHTS_FILE)


@pytest.mark.parametrize("num_bytes", [0, 7, 2**20, 3 * 2**20 + 1])
def test_the_digest_of_a_folder_is_that_of_its_contents(tmp_path, num_bytes):
    weights = os.urandom(num_bytes)
    assert folder_digest(write_adapter(tmp_path, weights)) == content_digest(b"{}", weights)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_an_os_error(tmp_path, name):
    (write_adapter(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError):
        folder_digest(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_refused_by_name_without_waiting(tmp_path, name):
    write_adapter(tmp_path)
    with ThreadPoolExecutor() as threads, pipe_in_place_of(tmp_path / name):
        digest = threads.submit(folder_digest, tmp_path)
        with pytest.raises(OSError, match=f"{name} is no regular file"):
            digest.result(timeout=5)


def test_a_device_without_an_end_is_refused_by_name(tmp_path):
    (write_adapter(tmp_path) / CONFIG_FILE).unlink()
    (tmp_path / CONFIG_FILE).symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"{CONFIG_FILE} is no regular file"):
        folder_digest(tmp_path)


@pytest.mark.parametrize(("name", "limit"), [(CONFIG_FILE, "1,048,576"), (WEIGHTS_FILE, "34,359,738,368")])
def test_a_file_that_is_too_large_is_refused_by_name_and_not_read(tmp_path, name, limit):
    os.truncate(write_adapter(tmp_path) / name, 12 << 40)  # takes no disk space
    with pytest.raises(OSError, match=f"{name} has more than {limit} bytes"):
        folder_digest(tmp_path)
