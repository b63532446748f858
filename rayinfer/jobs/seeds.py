"""Seeds of a job: one of the process, and one of each row from the base seed and the row's id."""

import hashlib
import random

import numpy as np
import torch

SEED_SCHEME = "blake2b-63(base_seed, id)"
_MAX_NUMPY_SEED = 2**32


def row_seed(base_seed: int, row_id: str) -> int:
    """Return a row's seed, which depends on nothing else: neither its place, nor its batch, nor its worker."""
    digest = hashlib.blake2b(f"{base_seed}:{row_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def set_seeds(base_seed: int) -> None:
    """Seed torch, numpy and random, for tasks that draw numbers of their own."""
    torch.manual_seed(base_seed)
    np.random.seed(base_seed % _MAX_NUMPY_SEED)
    random.seed(base_seed)
