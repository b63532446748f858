"""Reference of block hashing, one block at a time."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayinfer.kv_cache.block_hash import token_bytes


def hash_block(parent_digest: bytes, salt: bytes, token_ids: NDArray[np.int32]) -> bytes:
    """Digest one full block; the first block of a sequence has ROOT_DIGEST as its parent."""
    digest: bytes = xxhash.xxh3_128_digest(parent_digest + salt + token_bytes(token_ids))
    return digest
