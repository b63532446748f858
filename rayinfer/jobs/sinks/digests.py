"""Digests of finished files, which a job's commit record holds and `verify` compares."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

_BLOCK_BYTES = 1 << 20


def digest_of(blocks: Iterable[bytes]) -> dict[str, Any]:
    """Return size and digest of content."""
    size, digest = 0, xxhash.xxh3_128()
    for block in blocks:
        size += len(block)
        digest.update(block)
    return {"bytes": size, "xxh3_128": digest.hexdigest()}


def file_digest(path: Path) -> dict[str, Any]:
    """Return size and digest of a file."""
    with path.open("rb") as file:
        return digest_of(iter(lambda: file.read(_BLOCK_BYTES), b""))
