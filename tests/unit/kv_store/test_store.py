import time

from rayinfer.kv_store.store import KVBlockStore
from support.fakes.fake_blocks import BLOCK_BYTES, bytes_of, has, name_of, open_slots, pieces_of


def keep(store, number, parent=None):
    parent_key = None if parent is None else name_of(parent).key
    return store.keep(name_of(number), pieces_of(bytearray(bytes_of(number))), parent_key, time.time_ns())


def load(store, number):
    block = bytearray(BLOCK_BYTES)
    tier = store.load(name_of(number), pieces_of(block), None, time.time_ns())
    assert tier is None or block == bytes_of(number)
    return tier


def open_store(tmp_path, num_slots=4, num_disk_slots=16):
    return KVBlockStore(open_slots(tmp_path / "memory.kv", num_slots), open_slots(tmp_path / "disk.kv", num_disk_slots))


def test_blocks_reach_the_disk_and_come_back_to_memory(tmp_path):
    store = open_store(tmp_path)
    for number in range(8):
        assert keep(store, number)
        assert store.flush(10)
    assert store.num_bytes == (4 * BLOCK_BYTES, 8 * BLOCK_BYTES)
    assert [load(store, number) for number in (7, 0, 0)] == ["memory", "disk", "memory"]
    assert load(store, 9) is None
    store.close()


def test_what_closes_is_on_the_disk(tmp_path):
    store = open_store(tmp_path)
    for number in range(4):
        assert keep(store, number, parent=number - 1 if number else None)
    store.close()
    disk = open_slots(tmp_path / "disk.kv", 16)
    assert all(has(disk, number) for number in range(4))


def test_a_block_that_the_disk_has_is_not_written_again(tmp_path):
    store = open_store(tmp_path)
    for _ in range(3):
        assert keep(store, 1)
        assert store.flush(10)
    assert (store.num_written, store.num_dropped) == (1, 0)
    assert 2 * 4096 < 512 * (tmp_path / "disk.kv").stat().st_blocks < 3 * BLOCK_BYTES + 2 * 4096


def test_a_damaged_block_in_memory_comes_from_the_disk(tmp_path):
    store = open_store(tmp_path)
    assert keep(store, 1)
    assert store.flush(10)
    with (tmp_path / "memory.kv").open("r+b") as file:
        file.seek(2 * 4096 + 50)
        file.write(b"spoiled")
    assert [load(store, 1), load(store, 1)] == ["disk", "memory"]
    assert store.num_damaged == 1
