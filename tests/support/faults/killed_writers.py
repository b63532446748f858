"""Writers of a KV store, killed at random moments while a reader looks on.

`python -m support.faults.killed_writers MEMORY_FOLDER DISK_FOLDER KILLS`
prints what was seen as JSON: kills, blocks that were read and were right or wrong, and what is left of the files.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from rayinfer.kv_store.slot_file import SlotFile
from rayinfer.kv_store.store import KVBlockStore
from support.fakes.fake_blocks import bytes_of, name_of, open_slots, pieces_of

BLOCK_BYTES = 100_000
NUM_SLOTS = 6
NUM_NUMBERS = 16  # names of blocks: more than slots


def open_tiers(folders: list[Path]) -> list[SlotFile]:
    """Open the store's files in memory and on the disk."""
    return [open_slots(folder / "store.kv", NUM_SLOTS, block_bytes=BLOCK_BYTES) for folder in folders]


def write_forever(folders: list[Path], blocks: list[bytes]) -> None:
    """Keep chains of blocks in both tiers until killed."""
    store = KVBlockStore(*open_tiers(folders))
    draws = random.Random(os.getpid())
    while True:
        first = 4 * draws.randrange(NUM_NUMBERS // 4)
        parent = None
        for number in range(first, first + 4):
            pieces = pieces_of(bytearray(blocks[number]))
            store.keep(name_of(number), pieces, parent, time.time_ns())
            parent = name_of(number).key


def read_all(tiers: list[SlotFile], blocks: list[bytes], counts: Counter[str]) -> None:
    """Read every block in every file and hold it against what it must be."""
    for slots in tiers:
        for number in range(NUM_NUMBERS):
            name, block = name_of(number), bytearray(BLOCK_BYTES)
            if slots.read(name.key, name.content, pieces_of(block), time.time_ns()):
                counts["right" if block == blocks[number] else "wrong"] += 1


def main(folders: list[Path], num_kills: int) -> None:
    """Kill so many writers, two of which write at once."""
    blocks = [bytes_of(number, BLOCK_BYTES) for number in range(NUM_NUMBERS)]
    tiers, counts, draws = open_tiers(folders), Counter[str](), random.Random(0)
    writers: list[int] = []
    for _ in range(num_kills + 2):
        writer = os.fork()
        if not writer:
            write_forever(folders, blocks)
        writers.append(writer)
        if len(writers) > 2:
            read_all(tiers, blocks, counts)
            time.sleep(draws.random() * 0.01)
            killed = writers.pop(draws.randrange(2))
            os.kill(killed, signal.SIGKILL)
            os.waitpid(killed, 0)
            counts["kills"] += 1
            read_all(tiers, blocks, counts)
    for writer in writers:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    name, begun = name_of(NUM_NUMBERS), time.monotonic()
    block = bytes_of(NUM_NUMBERS, BLOCK_BYTES)
    for slots in tiers:  # no lock is left
        counts["written"] += slots.write(name.key, name.content, pieces_of(bytearray(block)), None, time.time_ns())
    counts["damaged"] = sum(slots.num_damaged for slots in tiers)
    seen = {
        "is_lock_free": time.monotonic() - begun < 0.15,
        "files": [sorted(path.name for path in folder.iterdir()) for folder in folders],
        "bytes": [512 * (folder / "store.kv").stat().st_blocks for folder in folders],
        "max_bytes": tiers[0].layout.num_bytes,
    }
    for slots in tiers:
        slots.close()
    print(json.dumps(seen | counts))


if __name__ == "__main__":
    main([Path(sys.argv[1]), Path(sys.argv[2])], int(sys.argv[3]))
