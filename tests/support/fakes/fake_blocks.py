"""Blocks of a KV store whose bytes follow from their names, so that a wrong one shows at once."""

import hashlib
import time
from pathlib import Path

import numpy as np

from rayinfer.kv_store.file_format import FileHeader, FileLayout
from rayinfer.kv_store.slot_file import SlotFile
from rayinfer.kv_store.store import BlockName

BLOCK_BYTES = 10_000
NUM_PIECES = 5


def name_of(number: int) -> BlockName:
    """Return the name of a block."""
    digest = hashlib.blake2b(f"block {number}".encode()).digest()
    return BlockName(key=digest[:16], content=digest[16:48])


def bytes_of(number: int, block_bytes: int = BLOCK_BYTES) -> bytes:
    """Return what a block holds."""
    return np.random.default_rng(number).bytes(block_bytes)


def pieces_of(block: bytearray) -> list[memoryview]:
    """Cut a block into pieces."""
    size, view = len(block) // NUM_PIECES, memoryview(block)
    return [view[i * size : (i + 1) * size] for i in range(NUM_PIECES)]


def header_of(num_slots: int, *, block_bytes: int = BLOCK_BYTES, identity: bytes = b"m" * 32) -> FileHeader:
    """Return the header of a file of so many slots."""
    return FileHeader(identity=identity, layout=FileLayout(block_bytes=block_bytes, num_slots=num_slots), label="model")


def open_slots(path: Path, num_slots: int = 8, **of_header: object) -> SlotFile:
    """Open a file of so many slots."""
    return SlotFile(path, header_of(num_slots, **of_header))  # type: ignore[arg-type]


def put(slots: SlotFile, number: int, parent: int | None = None, stamp: int | None = None) -> bool:
    """Write a block."""
    name = name_of(number)
    pieces = pieces_of(bytearray(bytes_of(number, slots.layout.block_bytes)))
    parent_key = None if parent is None else name_of(parent).key
    return slots.write(name.key, name.content, pieces, parent_key, time.time_ns() if stamp is None else stamp)


def has(slots: SlotFile, number: int) -> bool:
    """Read a block; asserts that it is the right one, if there is one."""
    name, block = name_of(number), bytearray(slots.layout.block_bytes)
    if not slots.read(name.key, name.content, pieces_of(block), time.time_ns()):
        return False
    assert block == bytes_of(number, len(block)), f"block {number} holds something else"
    return True
