import logging
import threading

import pytest
import torch

from rayinfer.optimization.packed_cache import PackedCache, entry_key
from rayinfer.optimization.packed_entries import DATA_FILE
from rayinfer.optimization.tensor_file import StoredTensors, read_tensors

WEIGHTS = torch.arange(100, dtype=torch.float32)


class Builder:
    """Counts how often it was asked."""

    def __init__(self, weights=WEIGHTS):
        self.weights = weights
        self.num_builds = 0

    def __call__(self):
        self.num_builds += 1
        return StoredTensors({"weights": self.weights}, {"kind": "packed"})


def test_what_was_built_once_is_read_from_then_on(tmp_path):
    build = Builder()
    first, second = (PackedCache(tmp_path / "packed").fetch("key", build) for _ in range(2))
    assert build.num_builds == 1
    for stored in (first, second):
        assert torch.equal(stored.tensors["weights"], WEIGHTS)
        assert stored.notes == {"kind": "packed"}
    # Even the first reader's tensors are the file's, so that it shares its memory with those to come.
    assert first.tensors["weights"].data_ptr() != WEIGHTS.data_ptr()


def test_each_key_has_an_entry_of_its_own(tmp_path):
    cache = PackedCache(tmp_path)
    cache.fetch("one", Builder())
    other = Builder(WEIGHTS + 1)
    assert torch.equal(cache.fetch("two", other).tensors["weights"], WEIGHTS + 1)
    assert torch.equal(cache.fetch("one", other).tensors["weights"], WEIGHTS)
    assert other.num_builds == 1
    assert sorted(file.parent.name for file in tmp_path.glob(f"*/{DATA_FILE}")) == ["one", "two"]


def test_a_damaged_entry_is_built_again(tmp_path):
    cache, build = PackedCache(tmp_path), Builder()
    cache.fetch("key", build)
    with (tmp_path / "key" / DATA_FILE).open("r+b") as data:
        data.write(b"damage")
    assert torch.equal(cache.fetch("key", build).tensors["weights"], WEIGHTS)
    assert build.num_builds == 2
    assert read_tensors(tmp_path / "key") is not None, "it was not mended on the disk"


def test_what_a_killed_process_left_behind_is_no_entry_and_no_hindrance(tmp_path):
    leftover = tmp_path / ".key.unfinished"
    leftover.mkdir(parents=True)
    (leftover / DATA_FILE).write_bytes(b"half")
    build = Builder()
    PackedCache(tmp_path).fetch("key", build)
    assert build.num_builds == 1
    assert not leftover.exists()
    assert read_tensors(tmp_path / "key") is not None


def test_of_many_at_once_one_builds_and_the_others_wait_for_it(tmp_path):
    is_building, may_end = threading.Event(), threading.Event()
    num_builds, found = [], []

    def build():
        num_builds.append(1)
        is_building.set()
        assert may_end.wait(10)
        return Builder()()

    def fetch():
        found.append(PackedCache(tmp_path).fetch("key", build))

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    threads[0].start()
    assert is_building.wait(10)
    for thread in threads[1:]:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert len(num_builds) == 1
    assert len(found) == 3


def test_a_failed_build_leaves_nothing_and_says_so(tmp_path):
    cache = PackedCache(tmp_path)

    def fail():
        raise ValueError("no such tensor")

    with pytest.raises(ValueError, match="no such tensor"):
        cache.fetch("key", fail)
    build = Builder()
    cache.fetch("key", build)
    assert build.num_builds == 1


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path, caplog):
    (tmp_path / "packed").write_text("a file stands here")
    build = Builder()
    with caplog.at_level(logging.WARNING):
        stored = PackedCache(tmp_path / "packed").fetch("key", build)
    assert torch.equal(stored.tensors["weights"], WEIGHTS)
    assert build.num_builds == 1
    assert len(caplog.records) == 1
    assert "cannot be kept" in caplog.text


def test_a_disk_without_room_costs_one_warning(tmp_path, caplog):
    build = Builder()
    # More than any disk has; its memory is never touched.
    build.weights = torch.empty(1, dtype=torch.int8).expand(1 << 60)
    with caplog.at_level(logging.WARNING):
        stored = PackedCache(tmp_path, max_bytes=1 << 61).fetch("key", build)
    assert stored.tensors["weights"] is build.weights
    assert len(caplog.records) == 1
    assert "GiB are free" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == [".key.lock"]


def test_keys_of_different_facts_differ():
    facts = {"checkpoint": "a", "quantization": None, "layout": 1}
    keys = {entry_key(**facts), entry_key(**facts | {"layout": 2}), entry_key(**facts | {"quantization": "int8"})}
    assert len(keys) == 3
    assert entry_key(**facts) in keys
