"""Decoding of images beside the engine: in processes that may die, each with a thread that waits for it."""

import logging
import queue
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

import numpy as np
import numpy.typing as npt

from rayinfer.errors import BadImage
from rayinfer.images.shapes import ANSWER, IMAGE, PIXELS, AnyShape, worker_command
from rayinfer.predictions import DEFAULT_IMAGE_LIMITS, ImageLimits

logger = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]

NUM_PROCESSES = 2
TIMEOUT_S = 10.0  # of one image; 25 megapixels take half a second


class ImageDecoder:
    """Decodes images of a model, several at once; a file that ends or blocks its process fails alone."""

    def __init__(
        self,
        shape: AnyShape,
        limits: ImageLimits = DEFAULT_IMAGE_LIMITS,
        *,
        num_processes: int = NUM_PROCESSES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="images")
        self._processes = [_DecodingProcess(shape, limits, timeout_s) for _ in range(num_processes)]
        self._free: queue.LifoQueue[_DecodingProcess] = queue.LifoQueue()  # those that run go first
        for process in self._processes:
            self._free.put(process)

    def submit(self, image: bytes | Pixels) -> "Future[Pixels]":
        """Begin to decode an image, or to resize pixels; the future has pixels, [height, width, 3], or BadImage."""
        return self._threads.submit(self._decode, image)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that have started; each starts with its first image."""
        return [process.pid for process in self._processes if process.pid is not None]

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _decode(self, image: bytes | Pixels) -> Pixels:
        num_bytes = len(image) if isinstance(image, bytes) else image.size
        if num_bytes > self._limits.max_bytes:  # without a copy to the process
            raise BadImage(f"the image has {num_bytes:,} bytes, the limit is {self._limits.max_bytes:,}", "image")
        process = self._free.get()
        try:
            return process.decode(image)
        finally:
            self._free.put(process)


class _DecodingProcess:
    """One process, which its first image starts, and the next one where it has died."""

    def __init__(self, shape: AnyShape, limits: ImageLimits, timeout_s: float) -> None:
        self._command = worker_command(shape, limits)
        self._shape = shape
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def decode(self, image: bytes | Pixels) -> Pixels:
        height, width = (0, 0) if isinstance(image, bytes) else image.shape[:2]
        content = image if isinstance(image, bytes) else image.tobytes()
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(IMAGE.pack(len(content), height, width) + content)
            process.stdin.flush()
            return self._read_answer(process.stdout)
        except BadImage:
            raise
        except (OSError, EOFError, ValueError) as error:  # ValueError: closed meanwhile
            self._end(process)  # the next image gets another one
            logger.warning("an image of %d bytes has ended the process that decodes: %r", len(content), error)
            raise BadImage("the image cannot be decoded", "image") from error
        finally:
            timer.cancel()

    def close(self) -> None:
        self._is_closed = True
        if self._process is not None:
            self._end(self._process)

    def _read_answer(self, stream: IO[bytes]) -> Pixels:
        kind, height, width = ANSWER.unpack(_read(stream, ANSWER.size))
        if kind != PIXELS:
            raise BadImage(_read(stream, min(height, 1000)).decode(errors="replace"), "image")
        if not self._shape.is_result(height, width):
            raise EOFError(f"its answer has {height} x {width} pixels")
        pixels = np.empty((height, width, 3), np.uint8)
        if stream.readinto(pixels.data) < pixels.nbytes:  # type: ignore[attr-defined]
            raise EOFError
        return pixels

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise BadImage("the engine is shut down", "image")
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self._end(self._process)
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


def _read(stream: IO[bytes], num_bytes: int) -> bytes:
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content
