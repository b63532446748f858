"""RoPE scaling: rotary frequencies for contexts longer than those of training.

Two of them depend on length: dynamic NTK slows down, and longrope changes its factors, when a sequence grows longer
than the original context. transformers looks at each forward; here one choice holds for an engine, by the longest
sequence that its settings allow. So a request's tokens depend neither on the others in its batch, nor on chunks, nor on
free memory, and cached keys are rotated alike for all readers. Where all sequences are within the original context,
or all are beyond (dynamic NTK: of one length), both ways give the same.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

Rope = Mapping[str, Any]  # settings by the names of `rope_parameters` in config.json


@dataclass(frozen=True, slots=True)
class Rotation:
    """Frequencies and amplitude of a rotary embedding."""

    frequencies: torch.Tensor  # radians per position, [rotary_dim / 2]
    amplitude: float = 1.0  # of cosines and sines; other than 1 it sharpens the attention


def rotation(head_dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    """Scale the frequencies of a head's rotated channels by `rope["rope_type"]`."""
    scale = SCALINGS[rope.get("rope_type", "default")]
    return scale(int(head_dim * rope.get("partial_rotary_factor", 1.0)), rope, longest_sequence)


def _unscaled(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    return Rotation(_frequencies(dim, _base(rope)))


def _linear(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    return Rotation(_frequencies(dim, _base(rope)) / float(rope["factor"]))


def _dynamic(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    # NTK-aware scaling: the base grows with the length, so that the slowest waves stretch and the fastest stay.
    factor, original = float(rope["factor"]), rope["max_position_embeddings"]
    stretch = factor * max(longest_sequence, original) / original - (factor - 1)
    return Rotation(_frequencies(dim, _base(rope) * stretch ** (dim / (dim - 2))))


def _yarn(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    # Peng et al. 2023: pairs that rotate often within the original context are kept, slow ones are slowed by `factor`,
    # and between them lies a ramp.
    original, base, factor = rope["original_max_position_embeddings"], _base(rope), _factor(rope)

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    start, end = pair_that_turns(rope.get("beta_fast") or 32), pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, dim - 1)
    frequencies = _frequencies(dim, base)
    slowed = ((torch.arange(len(frequencies)) - start) / ((end - start) or 0.001)).clamp(0, 1)
    return Rotation(frequencies / factor * slowed + frequencies * (1 - slowed), _yarn_amplitude(rope, factor))


def _yarn_amplitude(rope: Rope, factor: float) -> float:
    def grown_by(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if rope.get("attention_factor"):
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return grown_by(rope["mscale"]) / grown_by(rope["mscale_all_dim"])
    return grown_by(1)


def _longrope(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    # Ding et al. 2024: a factor for each pair, one set of them for short contexts and one for long ones.
    original, factor = rope["original_max_position_embeddings"], _factor(rope)
    slowed_by = torch.tensor(rope["long_factor" if longest_sequence > original else "short_factor"])
    amplitude = rope.get("attention_factor")
    if not amplitude:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rotation(_frequencies(dim, _base(rope)) / slowed_by, float(amplitude))


def _llama3(dim: int, rope: Rope, longest_sequence: int) -> Rotation:
    # Llama 3.1: waves longer than the original context are slowed by `factor`, short ones kept, the rest blended.
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    frequencies = _frequencies(dim, _base(rope))
    wavelengths = 2 * math.pi / frequencies
    kept = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return Rotation((1 - kept) * frequencies / factor + kept * frequencies)


def _frequencies(dim: int, base: float) -> torch.Tensor:
    """They fall from 1 by powers of the base (Su et al. 2021): [dim / 2], rounded up."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def _base(rope: Rope) -> float:
    return float(rope.get("rope_theta", 10000.0))


def _factor(rope: Rope) -> float:
    """Return the ratio of the longest sequence to the original context."""
    if rope.get("factor"):
        return float(rope["factor"])
    return float(rope["max_position_embeddings"] / rope["original_max_position_embeddings"])


SCALINGS: Mapping[str, Callable[[int, Rope, int], Rotation]] = MappingProxyType(
    {
        "default": _unscaled,
        "linear": _linear,
        "dynamic": _dynamic,
        "yarn": _yarn,
        "longrope": _longrope,
        "llama3": _llama3,
    }
)
