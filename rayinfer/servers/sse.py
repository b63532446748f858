"""Server-sent events: framing, and the headers that keep proxies from buffering them."""

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients skip
CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: bytes) -> bytes:
    """Frame one line of JSON."""
    return b"data: " + data + b"\n\n"
