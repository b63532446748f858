"""Hostile images: bombs, broken and foreign files, URLs, and more of them than a request may have."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
NUM_TINY = 10_000  # images of one request
NUM_LARGE = 100  # images as large as the limits allow, all different
LARGE_SIDE = 5000  # pixels
GIF_FRAMES = 5000
_PNG = b"\x89PNG\r\n\x1a\n"


def png(width: int, height: int, *, shade: int = 0, ends: bool = True) -> bytes:
    """Make a PNG of one gray; without its end it is a header alone, whatever the size."""
    head = _PNG + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    if not ends:
        return head
    packer = zlib.compressobj(1)
    row = b"\0" + bytes((shade,)) * width
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return head + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def hostile_images() -> dict[str, list[str]]:
    """Return the images of requests that a service has to refuse, by kind, as data: URLs or other URLs."""
    whole = png(2000, 2000)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    gif = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame * GIF_FRAMES + b";"
    return {
        "a bomb of 100 gigapixels": [data_url(png(316_228, 316_228, ends=False))],
        "a bomb within the sides": [data_url(png(8192, 8192, ends=False))],
        "a truncated PNG": [data_url(whole[: len(whole) // 2])],
        "ten thousand tiny images": [data_url(png(1, 1))] * NUM_TINY,
        "a loopback URL": ["http://127.0.0.1:8000/metrics"],
        "an SVG": [data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml")],
        "a GIF of many frames": [data_url(gif, "gif")],
        "wrong base64": ["data:image/png;base64," + "%" * 1_000_000],
    }


def large_images() -> Iterator[str]:
    """Make images as large as a service's limits allow, each of another gray: none is known from the one before."""
    for number in range(NUM_LARGE):
        yield data_url(png(LARGE_SIDE, LARGE_SIDE, shade=number))


def data_url(content: bytes, kind: str = "png") -> str:
    """Encode a file as a data: URL."""
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()


def image_bodies(model: str, urls: Sequence[str]) -> dict[str, bytes]:
    """Return a request with these images for each path that takes a conversation."""
    chat = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    responses = [{"type": "input_image", "image_url": url} for url in urls]
    messages = [{"type": "image", "source": _source(url)} for url in urls]
    return {
        CHAT: _body(model, "messages", chat, "text", max_tokens=2),
        RESPONSES: _body(model, "input", responses, "input_text", max_output_tokens=2),
        MESSAGES: _body(model, "messages", messages, "text", max_tokens=2),
    }


def _source(url: str) -> dict[str, str]:
    """Return an image as `/v1/messages` takes it."""
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.partition(";base64,")
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


def _body(model: str, field: str, parts: Sequence[Any], kind: str, **settings: int) -> bytes:
    content = [*parts, {"type": kind, "text": "What is this?"}]
    body = {"model": model, field: [{"role": "user", "content": content}], **settings}
    return json.dumps(body, separators=(",", ":")).encode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
