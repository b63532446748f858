"""Requests that must be refused, as the bytes that a client would send, and what must come back."""

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

TIMEOUT_S = 20.0  # a request takes milliseconds; the machine may be busy
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRequest:
    """One of them."""

    name: str
    status: int
    payload: bytes
    is_http: bool = True  # what is not even HTTP, Serve's proxy answers in uvicorn's words

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP response to a bad request."""

    status: int
    body: bytes
    is_cut: bool = False  # the connection broke before the body was here

    @property
    def error(self) -> dict[str, object]:
        """The envelope's inside."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)


def ask(host: str, port: int, payload: bytes) -> Answer:
    """Send bytes over a connection of their own and read one answer.

    Serve's proxy closes a connection with bytes unread: whoever still sends what it refused may lose the answer's body.
    """
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
        with contextlib.suppress(OSError):  # it may be refused before it is read to its end
            connection.sendall(payload)
        received = b""
        while part := _read(connection):
            received += part
            head, ends, body = received.partition(b"\r\n\r\n")
            if ends and len(body) >= _length(head):
                return Answer(int(head.split()[1]), body)
        if received.partition(b"\r\n\r\n")[1] and len(payload) > MIB:
            return Answer(int(received.split()[1]), b"", is_cut=True)
        raise AssertionError(f"no answer, but {received[:200]!r}")


def good_request(model: str, prefix: str = "") -> bytes:
    """A request that must be answered with 200."""
    return post(prefix + COMPLETIONS, json.dumps({"model": model, "prompt": "hi", "max_tokens": 1}).encode())


def bad_requests(model: str, prefix: str = "") -> list[BadRequest]:
    """All of them, for a service that is reached under `prefix`."""
    return [*_bad_http(prefix), *_bad_json(prefix), *_bad_fields(model, prefix)]


def post(
    path: str, body: bytes, *headers: str, content_type: str = "application/json", length: int | None = None
) -> bytes:
    """Write a POST request."""
    announced = len(body) if length is None else length
    return head("POST", path, f"content-type: {content_type}", f"content-length: {announced}", *headers) + body


def head(method: str, path: str, *headers: str) -> bytes:
    """Write a request up to its body."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: service", *headers, "", "")).encode("latin-1")


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except ConnectionError:
        return b""


def _length(answer_head: bytes) -> int:
    for line in answer_head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _bad_http(prefix: str) -> Iterator[BadRequest]:
    path = prefix + COMPLETIONS
    chunked = head("POST", path, "content-type: application/json", "transfer-encoding: chunked")
    no_http = {
        "no http": b"\0\1\2\3\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "no path": b"GET\r\n\r\n",
        "unknown version": f"GET {path} HTTP/9.9\r\nhost: a\r\n\r\n".encode(),
        "unknown method": head("FETCH", path),
        "header without colon": head("GET", path, "no colon"),
        "space in a header's name": head("GET", path, "a b: c"),
        "control character in a header": head("GET", path, "a: b\0c"),
        "negative length": post(path, b"{}", length=-1),
        "length that is no number": head("POST", path, "content-length: ten"),
        "two lengths": post(path, b"{}", "content-length: 3"),
        "length and chunks": post(path, b"0\r\n\r\n", "transfer-encoding: chunked"),
    }
    for name, payload in no_http.items():
        yield BadRequest(name=name, status=400, payload=payload, is_http=False)
    yield BadRequest(name="101 headers", status=431, payload=head("POST", path, *[f"a{n}: b" for n in range(101)]))
    yield BadRequest(name="33 KiB in one header", status=431, payload=post(path, b"{}", "a: " + "b" * 33 * 2**10))
    yield BadRequest(name="33 KiB of cookies", status=431, payload=post(path, b"{}", *["cookie: " + "b" * 1100] * 31))
    yield BadRequest(name="33 KiB of query", status=431, payload=post(path + "?" + "a" * 33 * 2**10, b"{}"))
    yield BadRequest(name="65 MiB announced", status=413, payload=post(path, b"{", length=65 * MIB))
    yield BadRequest(name="exabytes announced", status=413, payload=post(path, b"{", length=10**18))
    yield BadRequest(name="5 MiB sent", status=413, payload=post(path, b" " * 5 * MIB))
    chunks = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
    yield BadRequest(name="5 MiB in chunks", status=413, payload=chunked + chunks * 20 + b"0\r\n\r\n")
    yield BadRequest(name="gzip", status=415, payload=post(path, b"\x1f\x8b\x08", "content-encoding: gzip"))
    yield BadRequest(name="brotli", status=415, payload=post(path, b"{}", "content-encoding: br"))
    for kind in ("multipart/form-data; boundary=a", "text/plain", "application/x-www-form-urlencoded", "a" * 5000, ""):
        yield BadRequest(name=f"content type {kind[:9]}", status=415, payload=post(path, b"{}", content_type=kind))
    yield BadRequest(name="no such path", status=404, payload=post(prefix + "/v1/none", b"{}"))
    yield BadRequest(name="dots", status=404, payload=head("GET", prefix + "/v1/../../etc/passwd"))
    yield BadRequest(name="wrong method", status=405, payload=head("GET", path))
    yield BadRequest(name="delete", status=405, payload=head("DELETE", path, "content-length: 0"))


def _bad_json(prefix: str) -> Iterator[BadRequest]:
    deep = b"[" * 65 + b"]" * 65
    bodies = {
        "no body": b"",
        "blanks": b" \r\n\t ",
        "half an object": b'{"prompt": "a"',
        "half a text": b'{"prompt": "a',
        "comma at the end": b'{"prompt": "a",}',
        "two values": b'{"prompt": "a"} {}',
        "single quotes": b"{'prompt': 'a'}",
        "comment": b'{"prompt": "a"} // b',
        "list": b'[{"prompt": "a"}]',
        "text": b'"prompt"',
        "null": b"null",
        "NaN": b'{"prompt": "a", "temperature": NaN}',
        "Infinity": b'{"prompt": "a", "temperature": Infinity}',
        "-Infinity": b'{"prompt": "a", "unknown": [-Infinity]}',
        "leading zero": b'{"prompt": "a", "seed": 01}',
        "hexadecimal": b'{"prompt": "a", "seed": 0x10}',
        "5000 digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        "4 million digits": b'{"prompt": "a", "seed": ' + b"9" * (4 * MIB - 100) + b"}",
        "bytes that are no UTF-8": b'{"prompt": "\xff\xfe"}',
        "encoded surrogate": b'{"prompt": "\xed\xa0\x80"}',
        "overlong encoding": b'{"prompt": "\xc0\xaf"}',
        "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
        "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
        "half a pair": b'{"prompt": "\\ud83d"}',
        "half a pair in a name": b'{"prompt": "a", "\\udc00": 1}',
        "pair in the wrong order": b'{"prompt": "\\ude00\\ud83d"}',
        "line break in a text": b'{"prompt": "a\nb"}',
        "zero byte": b'{"prompt": "a\0"}',
        "65 levels": b'{"prompt": ' + deep + b"}",
        "65 levels in an ignored field": b'{"prompt": "a", "unknown": ' + deep + b"}",
        "4 MiB of openings": b"[" * 4 * MIB,
        "4 MiB of objects": b'{"a":' * (4 * MIB // 5),
        "4 MiB of lists": b'{"a": [' + b"[]," * (4 * MIB // 3 - 10) + b"[]]}",
        "4 MiB of backslashes": b'"' + b"\\" * (4 * MIB - 1),
        "4 MiB of quotes": b'"' * 4 * MIB,
    }
    for name, body in bodies.items():
        for path in (COMPLETIONS, CHAT) if len(body) < 1000 else (COMPLETIONS,):
            yield BadRequest(name=f"{name} to {path}", status=400, payload=post(prefix + path, body))


def _bad_fields(model: str, prefix: str) -> Iterator[BadRequest]:
    fields: dict[str, dict[str, object]] = {
        "a million choices": {"n": 10**6},
        "too many tokens": {"max_tokens": 10**30},
        "negative tokens": {"max_tokens": -1},
        "infinite temperature": {"temperature": 1e308 * 10},
        "object for a prompt": {"prompt": {"a": 1}},
        "unknown token ids": {"prompt": [10**9]},
        "texts for numbers": {"temperature": "1", "top_p": "0.5"},
        "a thousand stop strings": {"stop": ["a"] * 1000},
        "huge bias": {"logit_bias": {"1": 1e300}},
    }
    for name, more in fields.items():
        body = json.dumps({"model": model, "prompt": "hi", **more}).replace("Infinity", "1e999").encode()
        yield BadRequest(name=name, status=400, payload=post(prefix + COMPLETIONS, body))
    unknown = json.dumps({"model": "../../etc/passwd", "prompt": "hi"}).encode()
    yield BadRequest(name="unknown model", status=404, payload=post(prefix + COMPLETIONS, unknown))
