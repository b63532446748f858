"""Queue of requests whose images are to be encoded, and the few images among them that are decoded ahead."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rayinfer.images.decoding import ImageDecoder, Pixels
from rayinfer.predictions import ImageInput

DECODED_AHEAD = 3  # images that are decoded, or being decoded, beside the one that is encoded: 50 MB each at most


@dataclass(eq=False, slots=True)
class Encoding:
    """Images of one request, and the future of their embeddings; once that is cancelled, no further image is begun."""

    images: Sequence[ImageInput]
    done: Future[Any] = field(default_factory=Future)

    def finish(self, result: Any) -> None:
        """Set the result, unless it was cancelled."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless it was cancelled."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


class EncodingQueue:
    """Encodings in their order of arrival, for one thread that takes them; others may add, cancel and close.

    Images are decoded in the order in which they will be encoded, a few at once, however many wait.
    """

    def __init__(
        self, decoder: ImageDecoder, find_missing: Callable[[Sequence[ImageInput]], Sequence[ImageInput]]
    ) -> None:
        self._decoder = decoder
        self._find_missing = find_missing  # images whose embeddings are not known
        self._waiting: deque[Encoding] = deque()  # the first one is being encoded
        self._decoding: dict[bytes, Future[Pixels]] = {}  # by digest
        self._calls: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, images: Sequence[ImageInput]) -> "Future[Any]":
        """Queue a request's images; the future may be cancelled at any time."""
        encoding = Encoding(images)
        with self._changed:
            if self._is_closed:
                encoding.done.cancel()
                return encoding.done
            self._waiting.append(encoding)
            self._decode_ahead()
            self._changed.notify()
        encoding.done.add_done_callback(lambda _: self._remove(encoding))
        return encoding.done

    def call(self, function: Callable[[], None]) -> "Future[None]":
        """Have the thread call a function before it begins another image."""
        called: Future[None] = Future()
        with self._changed:
            if self._is_closed:
                called.cancel()
            else:
                self._calls.append((function, called))
                self._changed.notify()
        return called

    def close(self) -> None:
        """Cancel all that waits."""
        with self._changed:
            self._is_closed = True
            cancelled = [*(encoding.done for encoding in self._waiting), *(called for _, called in self._calls)]
            self._calls.clear()
            self._changed.notify()
        for future in cancelled:
            future.cancel()

    # In the thread that encodes

    def take(self) -> Encoding | None:
        """Wait for the next encoding, which stays in the queue until it is done; None once the queue is closed."""
        with self._changed:
            while not (self._waiting or self._is_closed):
                self._run_calls()
                self._changed.wait()
            return None if self._is_closed else self._waiting[0]

    def start_image(self, image: ImageInput) -> "Future[Pixels]":
        """Run the calls that wait, and return the future of an image's pixels."""
        with self._changed:
            self._run_calls()
            self._decode_ahead()
            decoding = self._decoding.get(image.digest)
        return decoding or self._decoder.submit(image.content)

    def _run_calls(self) -> None:
        while self._calls:
            function, called = self._calls.popleft()
            try:
                function()
            except Exception as error:  # the caller's: the thread goes on
                called.set_exception(error)
            else:
                called.set_result(None)

    def _remove(self, encoding: Encoding) -> None:
        with self._changed:
            if encoding in self._waiting:
                self._waiting.remove(encoding)
                self._decode_ahead()

    def _decode_ahead(self) -> None:
        """Decode the next images, and drop what no encoding wants any more."""
        wanted = {} if self._is_closed else self._next_images()
        for digest in self._decoding.keys() - wanted.keys():
            self._decoding.pop(digest).cancel()
        for digest, image in wanted.items():
            if digest not in self._decoding:
                self._decoding[digest] = self._decoder.submit(image.content)

    def _next_images(self) -> dict[bytes, ImageInput]:
        found: dict[bytes, ImageInput] = {}
        for encoding in self._waiting:
            for image in self._find_missing(encoding.images):
                found[image.digest] = image
                if len(found) == DECODED_AHEAD:
                    return found
        return found
