"""Philox4x32-10, a counter-based random generator (Salmon et al. 2011): no state, the same numbers on every device."""

import torch
from torch import Tensor

NUM_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counters: Tensor, keys: Tensor) -> Tensor:
    """Turn `counters` [4, n] under `keys` [2, n] into random words [4, n], all 32-bit words held in int64."""
    device = counters.device
    multipliers = torch.tensor(_MULTIPLIERS, device=device).unsqueeze(1)
    key_steps = torch.tensor(_KEY_STEPS, device=device).unsqueeze(1)
    even, odd = counters[0::2], counters[1::2]
    for round_number in range(NUM_ROUNDS):
        products = even * multipliers  # wraps modulo 2^64, so both halves are still exact
        round_keys = (keys + round_number * key_steps) & _WORD
        high, low = (products >> 32) & _WORD, products & _WORD
        even, odd = high.flip(0) ^ odd ^ round_keys, low.flip(0)
    return torch.stack((even, odd), dim=1).flatten(0, 1)


def uniform(seeds: Tensor, positions: Tensor, choices: Tensor) -> Tensor:
    """One number in [0, 1) per row, as float64, that depends on the row's seed, position and choice alone.

    All are int64 [n]; a seed is the bit pattern of its 64 bits.
    """
    zeros = torch.zeros_like(positions)
    counters = torch.stack((positions & _WORD, choices & _WORD, zeros, zeros))
    keys = torch.stack((seeds & _WORD, (seeds >> 32) & _WORD))
    return philox4x32(counters, keys)[0].double() / 2.0**32
