"""The one reader of requests' bodies, which are JSON, for every protocol."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from rayinfer.errors import RequestError, UnsupportedContentType
from rayinfer.servers.json_decoding import decode_json
from rayinfer.servers.json_process import JsonProcess

LONG_BODY_BYTES = 2**13  # what is done with more takes milliseconds
VERY_LONG_BODY_BYTES = 2**18  # and seconds

Prepared = TypeVar("Prepared")


async def read_body(request: Request) -> bytes:
    """Read a request's body; raises RequestError where its Content-Type is not JSON."""
    _check_content_headers(request)
    return await request.body()


def decode_object(raw: bytes, decode: Callable[[bytes], Any] = decode_json) -> dict[str, Any]:
    """Decode a body as one JSON object; raises RequestError when it is anything else."""
    body = decode(raw)
    if not isinstance(body, dict):
        raise RequestError("The request's body must be a JSON object.", code="invalid_json")
    return body


class LongBodies:
    """Preparation of requests with long bodies, beside the event loop: one after the other, in one thread.

    More threads would contend for Python's lock and for the cores, and the event loop would wait for both. Very long
    bodies, each of which may take seconds, have a thread of their own, so that no other request waits for them.
    """

    def __init__(self) -> None:
        self._workers = [_DecodeWorker("long-bodies"), _DecodeWorker("very-long-bodies")]

    async def prepare(self, raw: bytes, prepare: Callable[[dict[str, Any]], Prepared]) -> Prepared:
        """Decode a body and prepare what it asks for; raises RequestError."""
        worker = self._worker_for(len(raw))
        return await asyncio.get_running_loop().run_in_executor(worker.thread, worker.prepare, raw, prepare)

    async def run(self, work: Callable[[], Prepared], num_bytes: int) -> Prepared:
        """Prepare a request of so many bytes that is not JSON; raises RequestError."""
        return await asyncio.get_running_loop().run_in_executor(self._worker_for(num_bytes).thread, work)

    def _worker_for(self, num_bytes: int) -> "_DecodeWorker":
        return self._workers[num_bytes > VERY_LONG_BODY_BYTES]


class _DecodeWorker:
    """A thread, and the process that decodes JSON for it."""

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._process = JsonProcess()

    def prepare(self, raw: bytes, prepare: Callable[[dict[str, Any]], Prepared]) -> Prepared:
        decode = self._process.decode if len(raw) > LONG_BODY_BYTES else decode_json
        try:
            return prepare(decode_object(raw, decode))
        except RequestError as error:
            error.__traceback__ = None  # it holds the whole body, which would be freed by the event loop
            raise


def _check_content_headers(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedContentType(f"Content-Type must be application/json, got {content_type!r:.80}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedContentType(f"Content-Encoding {encoding!r:.80} is not supported; send the body as it is.")
