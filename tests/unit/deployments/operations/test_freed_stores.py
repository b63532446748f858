import os
import threading
import time

import pytest

from rayinfer.kv_store.store_files import list_stores, open_slot_file
from rayinfer_deployments.operations.freed_stores import freed_stores
from support.fakes.fake_blocks import BLOCK_BYTES, put


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path / "shm"))
    return tmp_path / "shm"


def open_store(folder, letter):
    slots = open_slot_file(
        folder, identity=letter.encode() * 32, label=f"model {letter}", block_bytes=BLOCK_BYTES, max_bytes=100_000
    )
    assert put(slots, 0)
    return slots


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"kv_store_gib": 1.0}, ["model a", "model b"]),
        ({"kv_store_gib": 1.0, "kv_store_persists": True}, ["model a", "model b", "model c"]),
        ({}, ["model a", "model b", "model c"]),
    ],
)
def test_stores_of_engines_that_were_killed_are_deleted_unless_they_persist(folder, settings, left):
    open_store(folder, "a").close()
    (earlier,) = list_stores(folder)
    os.utime(earlier.path, (time.time() - 60,) * 2)
    with freed_stores(settings, wait_s=0.1):
        in_use = open_store(folder, "b")
        open_store(folder, "c").close()
    assert sorted(store.model for store in list_stores(folder)) == left
    in_use.close()


def test_an_engine_that_is_about_to_end_is_waited_for(folder):
    with freed_stores({"kv_store_gib": 1.0}):
        store = open_store(folder, "a")
        ending = threading.Timer(0.3, store.close)
        ending.start()
    assert not list_stores(folder)
    ending.join()


def test_a_service_without_a_store_needs_no_folder(folder):
    with freed_stores({"kv_store_gib": 1.0}):
        pass
    assert not folder.exists()
