"""Bodies of inference requests and responses over HTTP: JSON with binary data behind it, compressed or not."""

import asyncio
import gzip
import zlib
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from rayinfer.errors import InvalidParameter, RequestError, RequestTooLarge, UnsupportedContentType

HEADER_LENGTH = "Inference-Header-Content-Length"
OCTET_STREAM = "application/octet-stream"
LEAST_COMPRESSED_BYTES = 2**10  # less is sent as it is
_WINDOW_BITS = {"gzip": 31, "deflate": 15}


@dataclass(frozen=True, slots=True)
class InferBody:
    """A body, split where its JSON ends."""

    header: bytes
    binary: memoryview


async def read_infer_body(request: Request, max_bytes: int) -> InferBody:
    """Read and decompress a body; raises RequestError. Clients of this protocol often name no content type."""
    _check_content_type(request)
    raw = await request.body()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        if encoding not in _WINDOW_BITS:
            raise UnsupportedContentType(f"Content-Encoding must be gzip or deflate, got {encoding!r:.80}.")
        raw = await asyncio.to_thread(_decompress, raw, encoding, max_bytes)
    length = request.headers.get(HEADER_LENGTH)
    if length is None:
        return InferBody(raw, memoryview(b""))
    if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= len(raw)):
        raise InvalidParameter(
            f"{HEADER_LENGTH} must be a number of bytes, at most the body's {len(raw)}, got {length!r:.80}",
            HEADER_LENGTH,
        )
    return InferBody(raw[: int(length)], memoryview(raw)[int(length) :])


async def read_json_body(request: Request, max_bytes: int) -> bytes:
    """Read a body that is JSON only, or empty; raises RequestError."""
    body = await read_infer_body(request, max_bytes)
    if len(body.binary):
        raise InvalidParameter("this path takes no binary data", HEADER_LENGTH)
    return body.header


async def infer_response(header: bytes, binary: bytes | None, accept_encoding: str) -> Response:
    """Answer with JSON and the binary data behind it, compressed where the client asks for it."""
    headers = {} if binary is None else {HEADER_LENGTH: str(len(header))}
    content = header if binary is None else header + binary
    encoding = _accepted_encoding(accept_encoding)
    if encoding and len(content) >= LEAST_COMPRESSED_BYTES:
        content = await asyncio.to_thread(_compress, content, encoding)
        headers |= {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return Response(content, 200, headers, "application/json" if binary is None else OCTET_STREAM)


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type not in ("application/json", OCTET_STREAM) and not content_type.endswith("+json"):
        raise UnsupportedContentType(
            f"Content-Type must be application/json or {OCTET_STREAM}, or left out, got {content_type!r:.80}."
        )


def _decompress(raw: bytes, encoding: str, max_bytes: int) -> bytes:
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        content = decoder.decompress(raw, max_bytes + 1)
    except zlib.error:
        raise RequestError(f"The request's body is not valid {encoding}.", code="invalid_encoding") from None
    if len(content) > max_bytes:
        raise RequestTooLarge(f"The request's body is larger than {max_bytes} bytes when decompressed.")
    if not decoder.eof or decoder.unused_data:
        raise RequestError(f"The request's body is not one whole {encoding} stream.", code="invalid_encoding")
    return content


def _compress(content: bytes, encoding: str) -> bytes:
    return gzip.compress(content, 1, mtime=0) if encoding == "gzip" else zlib.compress(content, 1)


def _accepted_encoding(accepted: str) -> str:
    """Choose the first encoding that a client accepts, of those that we have; "" for none."""
    for each in accepted.lower().split(","):
        name, _, quality = each.strip().partition(";")
        if name.strip() in _WINDOW_BITS and quality.strip().replace(" ", "") not in ("q=0", "q=0.0"):
            return name.strip()
    return ""
