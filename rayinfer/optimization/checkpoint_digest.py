"""Digest of a checkpoint's content, computed once."""

import json
import os
from pathlib import Path

import xxhash

from rayinfer.models.checkpoints.model_folder import weight_files

BYTES_AT_ONCE = 16 << 20


def checkpoint_digest(folder: Path, notes: Path) -> str:
    """Return the digest of config.json and of all weights.

    Which files had which digest is noted in the folder `notes`, so that files that have not changed since are not read
    again: their size, the time of their last change and their inode are compared.
    """
    files = [folder / "config.json", *weight_files(folder)]
    identity = xxhash.xxh3_128_hexdigest(json.dumps([_identity(file) for file in files]).encode())
    note = notes / f"{identity}.digest"
    try:
        known = note.read_text(encoding="ascii")
        if len(known) == len(identity):
            return known
    except (OSError, UnicodeDecodeError):
        pass
    digest = _digest(files)
    try:
        notes.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_suffix(f".{os.getpid()}")
        unfinished.write_text(digest, encoding="ascii")
        unfinished.rename(note)
    except OSError:  # then it is worked out again next time
        pass
    return digest


def _identity(file: Path) -> list[str | int]:
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]


def _digest(files: list[Path]) -> str:
    digest = xxhash.xxh3_128()
    for file in files:
        digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while piece := stream.read(BYTES_AT_ONCE):
                digest.update(piece)
    return digest.hexdigest()
