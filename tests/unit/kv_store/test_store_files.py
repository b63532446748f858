import os
import stat
from pathlib import Path

import pytest

from rayinfer.errors import ConfigError
from rayinfer.kv_store.store_files import list_stores, open_slot_file, shrink_unused
from support.fakes.fake_blocks import BLOCK_BYTES, put

MAX_BYTES = 100_000


def open_store(folder, letter="a", max_bytes=MAX_BYTES):
    return open_slot_file(
        folder, identity=letter.encode() * 32, label=f"model {letter}", block_bytes=BLOCK_BYTES, max_bytes=max_bytes
    )


def filled(folder, letter, used_s):
    """Make a store with as many blocks as it has slots, and close it."""
    slots = open_store(folder, letter)
    for number in range(slots.layout.num_slots):
        assert put(slots, number)
    slots.close()
    (path,) = [store.path for store in list_stores(folder) if store.model == f"model {letter}"]
    os.utime(path, (used_s, used_s))


def models(folder):
    return [store.model for store in list_stores(folder)]


def test_a_store_is_within_its_bytes_in_a_folder_of_its_user_alone(tmp_path):
    (tmp_path / "kv").mkdir(mode=0o755)
    slots = open_store(tmp_path / "kv")
    assert slots.layout.num_bytes <= MAX_BYTES
    assert slots.layout.num_slots == 7
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    (store,) = list_stores(tmp_path / "kv")
    assert (store.model, store.max_bytes, store.is_in_use) == ("model a", slots.layout.num_bytes, True)
    assert stat.S_IMODE(Path(store.path).stat().st_mode) == 0o600


def test_unused_stores_keep_as_much_as_the_one_that_is_opened(tmp_path):
    for used_s, letter in enumerate("bcd"):
        filled(tmp_path, letter, used_s)
    assert models(tmp_path) == ["model c", "model d"]
    filled(tmp_path, "e", 9)
    in_use = open_store(tmp_path, "a")
    assert models(tmp_path)[:1] == ["model e"]
    assert sum(store.num_bytes for store in list_stores(tmp_path) if not store.is_in_use) <= MAX_BYTES
    in_use.close()


def test_stores_in_use_are_not_deleted(tmp_path):
    filled(tmp_path, "b", 1)
    slots = open_store(tmp_path)
    assert [store.model for store in shrink_unused(tmp_path, 0)] == ["model b"]
    assert models(tmp_path) == ["model a"]
    slots.close()
    assert [store.model for store in shrink_unused(tmp_path, 0)] == ["model a"]
    assert list(tmp_path.iterdir()) == []


def test_locks_without_a_store_are_deleted_and_damaged_files_listed(tmp_path):
    (tmp_path / "gone.lock").write_text("")
    (tmp_path / "text.kv").write_text("text")
    assert models(tmp_path) == ["(damaged)"]
    shrink_unused(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_room_for_a_block_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="9000 bytes of a KV store hold no block: one takes 12288 bytes"):
        open_store(tmp_path, max_bytes=9000)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_store(tmp_path / "file")
