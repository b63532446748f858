"""Small integers that several share a larger one, as published checkpoints pack them."""

import torch

FLOAT4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
E8M0_BIAS = 127


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] -> int32 [..., n x 32 / bits], without sign, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).flatten(-2)


def unpack_nibbles(packed: torch.Tensor, *, is_high_first: bool = False) -> torch.Tensor:
    """uint8 [..., n] -> uint8 [..., 2 n] of four bits each."""
    low, high = packed & 15, packed >> 4
    return torch.stack((high, low) if is_high_first else (low, high), -1).flatten(-2)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Scales of eight bits that are an exponent alone (e8m0), uint8 -> float32."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.to(torch.int32) - E8M0_BIAS)
