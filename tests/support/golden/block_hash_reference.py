"""Reference of block hashing, one block at a time."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayinfer.kv_cache.block_hash import token_bytes


def hash_block(parent_hash: bytes, salt: bytes, token_ids: NDArray[np.int32]) -> bytes:
    """Hash one full block; the first block of a sequence has ROOT_HASH as its parent."""
    block_hash: bytes = xxhash.xxh3_128_digest(parent_hash + salt + token_bytes(token_ids))
    return block_hash
