"""Hashes of full blocks, over everything that their keys and values depend on."""

import struct
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

# The parent of a first block. As wide as every other hash: parent, salt and tokens cannot run into each other.
ROOT_HASH = bytes(16)

_LITTLE_ENDIAN_INT32 = np.dtype("<i4")


def prefix_salt(
    tenant: str,
    cache_salt: str,
    adapter: str | None,
    weights_version: int = 0,
    image_digests: Sequence[bytes] = (),
) -> bytes:
    """Make the salt that separates prefixes of equal tokens; routers and engines must agree on it.

    A prompt with images is known by its tokens and the digests of all its images.
    """
    # By repr, no two tuples give the same text, and any client's text can be encoded.
    return repr((tenant, cache_salt, adapter or "", weights_version, *image_digests)).encode()


class BlockHashes:
    """The hashes of one request's full blocks, each computed once, when the block is full."""

    __slots__ = ("_block_bytes", "_block_size", "_salt", "hashes")

    def __init__(self, block_size: int, salt: bytes) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * _LITTLE_ENDIAN_INT32.itemsize
        self._salt = salt
        self.hashes: list[bytes] = []

    def extend(self, token_ids: NDArray[np.int32], num_tokens: int) -> None:
        """Add the hashes of blocks that became full; `token_ids[:num_tokens]` are all tokens known so far."""
        assert num_tokens <= len(token_ids), f"{num_tokens} tokens expected, {len(token_ids)} given"
        first, full = len(self.hashes), num_tokens // self._block_size
        if full > first:
            self.append(token_bytes(token_ids[first * self._block_size : full * self._block_size]))

    def append(self, written: bytes) -> None:
        """Add the hashes of the next blocks, whose token ids are given in the format of `token_bytes`."""
        hashes, salt, width = self.hashes, self._salt, self._block_bytes
        block_hash = hashes[-1] if hashes else ROOT_HASH
        hash_of = xxhash.xxh3_128_digest
        for start in range(0, len(written), width):
            block_hash = hash_of(block_hash + salt + written[start : start + width])
            hashes.append(block_hash)


def token_bytes(token_ids: NDArray[np.int32]) -> bytes:
    """Encode token ids for hashes: four bytes each, little-endian."""
    return token_ids.astype(_LITTLE_ENDIAN_INT32, copy=False).tobytes()


def hash_blocks(token_ids: Sequence[int], block_size: int, salt: bytes) -> list[bytes]:
    """Hash the full blocks of a list of token ids, which takes half as long as by an array."""
    num_full = len(token_ids) // block_size * block_size
    chain = BlockHashes(block_size, salt)
    chain.append(struct.pack(f"<{num_full}i", *token_ids[:num_full]))
    return chain.hashes
