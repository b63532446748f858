import os

import torch

from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_entries import delete_unfinished, list_entries, shrink
from rayinfer.optimization.tensor_file import StoredTensors

NUM_BYTES = 64 << 10  # of the weights of an entry
LIMIT = 2 * NUM_BYTES + 2048


def keep(cache, key, num_bytes=NUM_BYTES):
    return cache.fetch(key, lambda: StoredTensors({"weights": torch.ones(num_bytes // 4)}, {}))


def set_age(folder, **ages_s):
    for key, age_s in ages_s.items():
        os.utime(folder / key / "weights.safetensors", (1e9 - age_s, 1e9 - age_s))


def keys(folder):
    return [entry.key for entry in list_entries(folder)]


def test_a_cache_deletes_what_was_used_least_recently(tmp_path):
    cache = PackedCache(tmp_path, max_bytes=LIMIT)
    for key in ("a", "b"):
        keep(cache, key)
    set_age(tmp_path, a=10, b=20)
    assert keys(tmp_path) == ["b", "a"]
    keep(cache, "b")  # it is used again
    keep(cache, "c")
    assert sorted(keys(tmp_path)) == ["b", "c"]
    assert sum(entry.num_bytes for entry in list_entries(tmp_path)) <= LIMIT


def test_weights_that_are_mapped_stay_readable_when_their_entry_is_deleted(tmp_path):
    cache = PackedCache(tmp_path, max_bytes=LIMIT)
    first = keep(cache, "a")
    assert len(shrink(tmp_path, 0)) == 1
    assert keys(tmp_path) == []
    assert first.tensors["weights"].sum() == NUM_BYTES // 4


def test_weights_larger_than_the_cache_are_used_but_not_kept(tmp_path, caplog):
    cache = PackedCache(tmp_path, max_bytes=LIMIT)
    keep(cache, "a")
    assert len(keep(cache, "large", 4 * NUM_BYTES).tensors["weights"]) == NUM_BYTES
    assert keys(tmp_path) == ["a"]
    assert "more than the cache may have" in caplog.text


def test_only_entries_are_listed_and_leftovers_are_deleted(tmp_path):
    keep(PackedCache(tmp_path), "a")
    for name in ("digests", ".b.unfinished"):
        (tmp_path / name).mkdir()
    assert keys(tmp_path) == ["a"]
    delete_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "digests"]
    assert list_entries(tmp_path / "nowhere") == []
