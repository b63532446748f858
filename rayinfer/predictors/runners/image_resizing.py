"""Resizing of images with Pillow's numbers: two passes of fixed-point sums, each rounded to whole levels."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
PRECISION_BITS = 22


class Resampling(NamedTuple):
    """A kernel, and how far it reaches."""

    weigh: Callable[[float], float]
    support: float
    number: int  # Pillow's


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


RESAMPLINGS: Mapping[int, Resampling] = MappingProxyType(
    {2: Resampling(_triangle, 1.0, 2), 3: Resampling(_cubic, 2.0, 3)}
)


class Window(NamedTuple):
    """The inputs of one output, from `start`, with their weights in units of 2 ** -PRECISION_BITS."""

    start: int
    weights: npt.NDArray[np.float64]


def resize(pixels: Pixels, height: int, width: int, resampling: Resampling) -> Pixels:
    """Pixels [old height, old width, 3] -> [height, width, 3], rows first as Pillow does."""
    if pixels.shape[1] != width:
        pixels = _resize_last(pixels.transpose(0, 2, 1), width, resampling).transpose(0, 2, 1)
    if pixels.shape[0] != height:
        pixels = _resize_last(pixels.transpose(1, 2, 0), height, resampling).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels)


def _resize_last(pixels: Pixels, size: int, resampling: Resampling) -> Pixels:
    """Sum over the last axis; weights and levels are whole numbers, whose sums are exact in float64."""
    resized = np.empty((*pixels.shape[:-1], size), dtype=np.uint8)
    for index, window in enumerate(_windows(pixels.shape[-1], size, resampling)):
        levels = pixels[..., window.start : window.start + len(window.weights)].astype(np.float64)
        sums = (levels @ window.weights).astype(np.int64) + (1 << (PRECISION_BITS - 1))
        resized[..., index] = (sums >> PRECISION_BITS).clip(0, 255)
    return resized


def _windows(old_size: int, size: int, resampling: Resampling) -> list[Window]:
    scale = old_size / size
    stretch = max(scale, 1.0)  # a smaller image is the mean of what its pixels cover
    windows = []
    for index in range(size):
        center, reach = (index + 0.5) * scale, resampling.support * stretch
        start, end = max(0, int(center - reach + 0.5)), min(old_size, int(center + reach + 0.5))
        weights = [resampling.weigh((place - center + 0.5) / stretch) for place in range(start, end)]
        total = sum(weights)
        whole = [math.copysign(math.floor(abs(w / total) * 2**PRECISION_BITS + 0.5), w) for w in weights]
        windows.append(Window(start, np.array(whole)))
    return windows
