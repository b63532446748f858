"""Decoder and vision model that begin when a test lets them, and record what they had."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.images.shapes import TiledShape
from rayinfer.predictions import ImageInput

IMAGE_TOKEN_ID = 96
SHAPE = TiledShape(tile_side=1, longest_edge=1)
TIMEOUT_S = 10.0


def image_input(number: int) -> ImageInput:
    """Make an image that is decoded to its number."""
    return ImageInput.of(bytes([number]))


class FakeDecoder:
    """Decodes an image to one pixel, its first byte: at once, unless it `holds`."""

    def __init__(self, *, holds: bool = False) -> None:
        self.submitted: list[int] = []
        self.futures: list[Future[Any]] = []
        self._holds = holds

    def submit(self, content: bytes) -> "Future[Any]":
        """Begin to decode."""
        future: Future[Any] = Future()
        self.submitted.append(content[0])
        self.futures.append(future)
        if not self._holds:
            future.set_result(np.full((1, 1, 3), content[0], np.uint8))
        return future

    def close(self) -> None:
        """Do nothing: there are no processes."""


class HeldImageModel:
    """Vision model with one embedding for an image, which it begins to compute once `may_go` is set."""

    image_token_id = IMAGE_TOKEN_ID

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.encoded: list[int] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """See ImageModel."""
        self.has_begun.set()
        assert self.may_go.wait(TIMEOUT_S)
        self.encoded.append(int(pixels[0, 0, 0]))
        return pixels.float().view(1, 3)

    def grid(self, pixels: torch.Tensor) -> None:
        """See ImageModel."""


def held_encoder(model: HeldImageModel, decoder: FakeDecoder | None = None) -> ImageEncoder:
    """Make an encoder of both."""
    return ImageEncoder(lambda: model, SHAPE, decoder=decoder or FakeDecoder())  # type: ignore[arg-type, return-value]


def image_inputs(numbers: Sequence[int]) -> tuple[ImageInput, ...]:
    """Make an image of each number."""
    return tuple(map(image_input, numbers))
