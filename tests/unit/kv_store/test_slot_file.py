import fcntl
import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayinfer.kv_store.file_locks import LOCK_SUFFIX, delete_unused
from rayinfer.kv_store.slot_file import SlotFile
from support.fakes.fake_blocks import BLOCK_BYTES, bytes_of, has, header_of, name_of, open_slots, pieces_of, put


def test_a_written_block_is_read_by_another_opening_and_after_a_restart(tmp_path):
    writer, reader = open_slots(tmp_path / "a.kv"), open_slots(tmp_path / "a.kv")
    assert put(writer, 1)
    assert has(reader, 1)
    assert not has(reader, 2)
    for slots in (writer, reader):
        slots.close()
    assert has(open_slots(tmp_path / "a.kv"), 1)


def test_the_least_recently_used_block_makes_room(tmp_path):
    slots = open_slots(tmp_path / "a.kv", num_slots=3)
    for number in range(3):
        assert put(slots, number)
    assert has(slots, 0)
    assert put(slots, 3)
    assert [number for number in range(4) if slots.find(name_of(number).key) is not None] == [0, 2, 3]
    assert (slots.num_evicted, slots.num_bytes) == (1, 3 * BLOCK_BYTES)


def test_a_prefix_is_evicted_from_its_end(tmp_path):
    slots = open_slots(tmp_path / "a.kv", num_slots=4)
    for number in range(4):
        assert put(slots, number, parent=number - 1 if number else None)
    assert put(slots, 10)
    assert put(slots, 11)
    assert [has(slots, number) for number in range(4)] == [True, True, False, False]


def test_a_block_without_its_parent_is_not_written(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    assert not put(slots, 2, parent=1)
    assert slots.find(name_of(2).key) is None


def test_a_file_never_grows_beyond_its_bytes(tmp_path):
    slots = open_slots(tmp_path / "a.kv", num_slots=5)
    for number in range(40):
        assert put(slots, number)
    status = (tmp_path / "a.kv").stat()
    assert status.st_size == slots.layout.num_bytes
    assert 512 * status.st_blocks <= slots.layout.num_bytes
    assert slots.num_evicted == 35


def test_equal_keys_of_other_content_are_no_hit(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    assert put(slots, 1)
    block = bytearray(BLOCK_BYTES)
    assert not slots.read(name_of(1).key, name_of(2).content, pieces_of(block), 1)
    assert slots.num_damaged == 0
    assert slots.write(name_of(1).key, name_of(2).content, pieces_of(bytearray(bytes_of(2))), None, 1)
    assert not has(slots, 1)
    assert np.count_nonzero(block) == 0


def test_a_damaged_block_is_noticed_and_dropped(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    for number in range(6):
        assert put(slots, number)
    with (tmp_path / "a.kv").open("r+b") as file:
        for slot in (1, 4):
            file.seek(slots.layout.slot_offset(slot) + 777)
            file.write(b"spoiled")
    assert [has(slots, number) for number in range(6)] == [True, False, True, True, False, True]
    assert slots.num_damaged == 2
    assert not has(slots, 1)
    assert slots.num_damaged == 2
    assert put(slots, 1)
    assert has(slots, 1)


def spoil_table(path, layout):
    path.write_bytes(path.read_bytes()[:4096] + os.urandom(layout.data_offset - 4096) + bytes(layout.num_bytes))
    os.truncate(path, layout.num_bytes)


def truncate(path, layout):
    os.truncate(path, layout.num_bytes - 1)


SPOILERS = {
    "empty header": lambda path, layout: path.write_bytes(bytes(layout.num_bytes)),
    "random": lambda path, layout: path.write_bytes(os.urandom(layout.num_bytes)),
    "truncated": truncate,
    "truncated to the header": lambda path, layout: os.truncate(path, 4096),
    "one byte": lambda path, layout: path.write_bytes(b"x"),
    "longer": lambda path, layout: os.truncate(path, layout.num_bytes + 1),
    "text": lambda path, layout: path.write_text("a file of another program\n" * 1000),
    "another model's": lambda path, layout: open_other(path, identity=b"o" * 32),
    "another block size": lambda path, layout: open_other(path, block_bytes=BLOCK_BYTES + 5),
    "another version's": lambda path, layout: path.write_bytes(b"rayinfer KV 0" + path.read_bytes()[13:]),
}


def open_other(path, **of_header):
    path.unlink()
    open_slots(path, **of_header).close()


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_a_spoiled_file_is_noticed_and_begins_anew(spoiler, tmp_path):
    path = tmp_path / "a.kv"
    slots = open_slots(path)
    assert put(slots, 1)
    slots.close()
    SPOILERS[spoiler](path, slots.layout)
    slots = open_slots(path)
    assert slots.num_damaged == 1
    assert not has(slots, 1)
    assert put(slots, 1)
    assert has(slots, 1)


def test_random_records_are_never_hit_and_make_room(tmp_path):
    path = tmp_path / "a.kv"
    slots = open_slots(path, num_slots=8)
    assert put(slots, 1)
    slots.close()
    spoil_table(path, slots.layout)
    slots = open_slots(path, num_slots=8)
    assert not has(slots, 1)
    for number in range(8):
        assert put(slots, number)
    assert all(has(slots, number) for number in range(8))


def test_records_of_other_blocks_are_noticed(tmp_path):
    slots = open_slots(tmp_path / "a.kv", num_slots=2)
    assert put(slots, 0)
    assert put(slots, 1)
    with (tmp_path / "a.kv").open("r+b") as file:  # each slot whole, but they changed places
        layout = slots.layout
        file.seek(layout.data_offset)
        first, second = file.read(layout.slot_bytes), file.read(layout.slot_bytes)
        file.seek(layout.data_offset)
        file.write(second + first)
    assert [has(slots, number) for number in range(2)] == [False, False]
    assert slots.num_damaged == 2


def test_a_file_in_use_keeps_its_size_and_one_that_is_not_is_made_anew(tmp_path):
    first = open_slots(tmp_path / "a.kv", num_slots=3)
    assert put(first, 1)
    second = open_slots(tmp_path / "a.kv", num_slots=9)
    assert second.layout.num_slots == 3
    assert has(second, 1)
    first.close()
    second.close()
    assert open_slots(tmp_path / "a.kv", num_slots=9).layout.num_slots == 9


def test_a_file_of_other_blocks_in_use_is_refused(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    with pytest.raises(TimeoutError, match="another model"):
        SlotFile(tmp_path / "a.kv", header_of(8, identity=b"o" * 32), timeout_s=0.05)
    assert put(slots, 1)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused(make, tmp_path):
    make(tmp_path / "a.kv")
    with pytest.raises(OSError, match=r"a\.kv"):
        open_slots(tmp_path / "a.kv")


def test_only_unused_files_are_deleted(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    assert not delete_unused(tmp_path / "a.kv")
    slots.close()
    assert delete_unused(tmp_path / "a.kv")
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_writer_stops_no_other(tmp_path):
    slots = open_slots(tmp_path / "a.kv")
    with (tmp_path / "a.kv").with_suffix(LOCK_SUFFIX).open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not put(slots, 1)
    assert put(slots, 1)


def test_a_full_file_system_is_an_error_and_leaves_no_record(tmp_path, monkeypatch):
    slots = open_slots(tmp_path / "a.kv")
    monkeypatch.setattr(os, "pwritev", lambda *arguments: 4096)
    with pytest.raises(OSError, match="4096 of 10000"):
        put(slots, 1)
    monkeypatch.undo()
    assert slots.find(name_of(1).key) is None
    assert put(slots, 1)
    assert has(slots, 1)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "spoil", "reopen"]), st.integers(0, 11), st.integers(0, 1)), max_size=60
)


@given(ACTIONS, st.integers(1, 6))
def test_two_processes_never_read_what_was_not_written(tmp_path_factory, actions, num_slots):
    path = tmp_path_factory.mktemp("slots") / "a.kv"
    openings = [open_slots(path, num_slots) for _ in range(2)]
    written: set[int] = set()
    for action, number, process in actions:
        slots = openings[process]
        if action == "put":
            parent = number - 1 if number % 4 else None
            written |= {number} if put(slots, number, parent) else set()
        elif action == "get":
            assert not has(slots, number) or number in written
        elif action == "spoil":
            with path.open("r+b") as file:
                file.seek(random.Random(number).randrange(4096, slots.layout.num_bytes))
                file.write(b"x")
        else:
            slots.close()
            openings[process] = open_slots(path, num_slots)
        assert slots.layout == header_of(num_slots).layout
    for slots in openings:
        assert slots.num_bytes <= num_slots * BLOCK_BYTES
        slots.close()
