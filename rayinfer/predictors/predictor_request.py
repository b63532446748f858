"""Requests of a predictor engine, and those of them whose images are being decoded."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rayinfer.errors import InvalidParameter
from rayinfer.predictors.runner import RunnerItem
from rayinfer.protocols import GenerationRequest
from rayinfer.traces.request_trace import RequestTrace

Pixels = npt.NDArray[np.uint8]


class ImageSource(Protocol):
    """Decoder of images beside the engine's thread."""

    def submit(self, image: bytes | Pixels) -> "Future[Pixels]":
        """Begin to decode an image, or to resize pixels; the future has its pixels, or a RequestError."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


@dataclass(slots=True, eq=False)
class PredictorRequest:
    """One item in the engine."""

    request: GenerationRequest
    item: RunnerItem
    cost: int
    deadline: float | None
    trace: RequestTrace | None = None
    decoding: "Future[Pixels] | None" = None  # of its image, if it has one

    @property
    def name(self) -> str:
        """Its request id."""
        return self.request.request_id


class DecodingImages:
    """Requests by id until their images are decoded, in other threads."""

    def __init__(self, source: ImageSource | None) -> None:
        self.on_ready: Callable[[], None] = lambda: None  # called from any thread with each image
        self._source = source
        self._requests: dict[str, PredictorRequest] = {}
        self._ready: queue.SimpleQueue[PredictorRequest] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, name: str) -> bool:
        return name in self._requests

    @property
    def has_ready(self) -> bool:
        """Whether `take_ready` may return a request."""
        return not self._ready.empty()

    def add(self, added: PredictorRequest, image: bytes | Pixels) -> None:
        """Begin to decode a request's image; raises InvalidParameter where there are none."""
        if self._source is None:
            raise InvalidParameter("this model takes no images", "input")
        self._requests[added.name] = added
        added.decoding = self._source.submit(image)
        added.decoding.add_done_callback(lambda _: self._record_ready(added))

    def take_ready(self) -> list[PredictorRequest]:
        """Remove the requests whose images are decoded, or cannot be: their futures are done."""
        ready = []
        while not self._ready.empty():
            added = self._ready.get()
            if self._requests.get(added.name) is added:
                del self._requests[added.name]
                ready.append(added)
        return ready

    def cancel(self, name: str) -> PredictorRequest | None:
        """Remove a request; None where it is not there."""
        added = self._requests.pop(name, None)
        if added is not None and added.decoding is not None:
            added.decoding.cancel()
        return added

    def take_overdue(self, now: float) -> list[PredictorRequest]:
        """Remove the requests whose deadline has passed."""
        overdue = [each for each in self._requests.values() if each.deadline is not None and each.deadline <= now]
        for added in overdue:
            self.cancel(added.name)
        return overdue

    def close(self) -> None:
        """Cancel what is not decoded yet."""
        for name in list(self._requests):
            self.cancel(name)
        if self._source is not None:
            self._source.close()

    def _record_ready(self, added: PredictorRequest) -> None:
        self._ready.put(added)
        self.on_ready()
