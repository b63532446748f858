"""Encoder of images beside the engine's steps: decoded in processes that may die, and cached by content."""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from weakref import WeakValueDictionary

import torch

from rayinfer.engine.plan.step_plan import Float32Matrix
from rayinfer.engine.worker.images.encoding_queue import Encoding, EncodingQueue
from rayinfer.errors import BadImage
from rayinfer.images.decoding import ImageDecoder
from rayinfer.images.shapes import PatchedShape, PatchGrid, TiledShape
from rayinfer.models.vision.image_model import ImageModel
from rayinfer.outputs import ImageEncodingStats
from rayinfer.predictions import ImageInput

_logger = logging.getLogger(__name__)

CACHE_BYTES = 256 * 2**20  # of embeddings that no request has; about 100 images of SmolVLM-256M in 17 tiles
DECODING_TIMEOUT_S = 30.0  # of one image, the start of its process included, beside an engine that computes
NICENESS = 5  # of the thread that encodes, below the engine's


class EncodedImage:
    """Embeddings of an image, which are found by its digest as long as this is referred to."""

    __slots__ = ("__weakref__", "embeddings", "grid", "was_used")

    def __init__(self, embeddings: Float32Matrix, grid: PatchGrid | None = None) -> None:
        self.embeddings = embeddings  # [num_tokens, hidden_size]
        self.grid = grid  # where the embeddings' tokens have positions by row and column
        self.was_used = False  # by a request: every further one is a hit of the cache


class ImageEncoder:
    """Embeddings of images by digest: the latest ones, and those in use, are not computed again.

    Images are decoded in processes of their own, a few at once, and encoded one after the other by a thread of low
    priority; steps go on meanwhile, whatever waits. May be used from any thread.
    """

    def __init__(
        self,
        load: Callable[[], ImageModel],
        shape: TiledShape | PatchedShape,
        *,
        cache_bytes: int = CACHE_BYTES,
        decoder: ImageDecoder | None = None,
    ) -> None:
        self._load = load
        self._model: ImageModel | None = load()
        self.image_token_id = self._model.image_token_id
        self._decoder = ImageDecoder(shape, timeout_s=DECODING_TIMEOUT_S) if decoder is None else decoder
        self._cache_bytes = cache_bytes
        self._num_cached_bytes = 0
        self._latest: OrderedDict[bytes, EncodedImage] = OrderedDict()
        self._known: WeakValueDictionary[bytes, EncodedImage] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._stats = ImageEncodingStats()
        self._queue = EncodingQueue(self._decoder, self._missing)
        threading.Thread(target=self._run, name="image-encoder", daemon=True).start()

    def start(self, images: Sequence[ImageInput]) -> "Future[list[EncodedImage]] | None":
        """Begin to encode images; None if nothing is to be computed. The future may have BadImage, and be cancelled.

        While the future is referred to, `encode` finds the images without computing. Once it is cancelled, no further
        image is begun for it; what has begun is kept as any other.
        """
        return None if self._found(images) is not None else self._queue.add(images)

    def encode(self, images: Sequence[ImageInput]) -> list[EncodedImage]:
        """Return the embeddings of a request's images, computing those that are not known; raises BadImage."""
        while (found := self._found(images)) is None:
            started = self.start(images)
            if started is not None:
                found = started.result()
                break
        with self._lock:
            self._stats.queries_total += len(found)
            for each in found:
                self._stats.cache_hits_total += each.was_used
                each.was_used = True
        return found

    @property
    def stats(self) -> ImageEncodingStats:
        """Counters and gauges as they are now."""
        with self._lock:
            return replace(self._stats, num_waiting=len(self._queue))

    def release(self) -> None:
        """Free the weights and forget all embeddings; the next image loads the weights again."""
        with suppress(CancelledError):  # of an encoder that is closed
            self._queue.call(self._release).result()

    def close(self) -> None:
        """Drop what waits to be encoded, and end the processes."""
        self._queue.close()
        self._decoder.close()

    def _found(self, images: Sequence[ImageInput]) -> list[EncodedImage] | None:
        with self._lock:
            found = [self._known.get(image.digest) for image in images]
            known = [each for each in found if each is not None]
            if len(known) < len(images):
                return None
            for image in images:
                if image.digest in self._latest:
                    self._latest.move_to_end(image.digest)
            return known

    def _missing(self, images: Sequence[ImageInput]) -> list[ImageInput]:
        with self._lock:
            return [image for image in images if image.digest not in self._known]

    # In the encoder's thread

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (encoding := self._queue.take()) is not None:
            self._encode_all(encoding)

    def _encode_all(self, encoding: Encoding) -> None:
        found: list[EncodedImage] = []
        try:
            for image in encoding.images:
                if encoding.done.cancelled():
                    return
                found.append(self._encoded(image))
        except BadImage as error:
            encoding.fail(error if len(encoding.images) == 1 else _numbered(error, len(found), len(encoding.images)))
        except Exception as error:  # also of weights that cannot be read again: the engine ends with it
            encoding.fail(error)
        else:
            encoding.finish(found)

    def _encoded(self, image: ImageInput) -> EncodedImage:
        with self._lock:
            known = self._known.get(image.digest)
        if known is not None:
            return known
        pixels = torch.from_numpy(self._queue.start_image(image).result())
        if self._model is None:
            self._model = self._load()
        begun = time.monotonic()
        try:
            encoded = EncodedImage(self._model.encode(pixels).numpy(), self._model.grid(pixels))
        except RuntimeError as error:  # of torch, such as for want of memory
            _logger.exception("an image of %d bytes could not be encoded", len(image.content))
            raise BadImage(f"the image could not be encoded: {type(error).__name__}", "image") from error
        with self._lock:
            self._stats.encodings_total += 1
            self._stats.encode_seconds_total += time.monotonic() - begun
        self._keep(image.digest, encoded)
        return encoded

    def _keep(self, digest: bytes, encoded: EncodedImage) -> None:
        with self._lock:
            self._known[digest] = encoded
            if encoded.embeddings.nbytes > self._cache_bytes:
                return
            self._latest[digest] = encoded
            self._num_cached_bytes += encoded.embeddings.nbytes
            while self._num_cached_bytes > self._cache_bytes:
                _, oldest = self._latest.popitem(last=False)
                self._num_cached_bytes -= oldest.embeddings.nbytes

    def _release(self) -> None:
        self._model = None
        with self._lock:
            self._latest.clear()
            self._known.clear()
            self._num_cached_bytes = 0


def _numbered(error: BadImage, index: int, count: int) -> BadImage:
    return BadImage(f"image {index + 1} of {count}: {error}", error.param)
