"""Content digests of KV blocks, by which hits are verified."""

import hashlib

import numpy as np
from numpy.typing import NDArray

CONTENT_BYTES = 32


def content_digests(salt: bytes, token_ids: NDArray[np.int32], block_size: int, first: int, last: int) -> list[bytes]:
    """Digest what the blocks first to last-1 of a sequence depend on: its salt and all tokens up to a block's end.

    Hashes of blocks find them quickly; this one is cryptographic, so equal digests are equal contents.
    """
    digest = hashlib.blake2b(len(salt).to_bytes(8, "little") + salt, digest_size=CONTENT_BYTES)
    tokens = token_ids[: last * block_size].astype("<i4", copy=False)
    digest.update(tokens[: first * block_size].tobytes())
    digests = []
    for index in range(first, last):
        digest.update(tokens[index * block_size : (index + 1) * block_size].tobytes())
        digests.append(digest.copy().digest())
    return digests
