"""Framing of server-sent events."""

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients skip
EVENT_STREAM = "text/event-stream; charset=utf-8"
# Proxies must not buffer a stream.
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: bytes) -> bytes:
    """Frame one line of JSON."""
    return b"data: " + data + b"\n\n"
