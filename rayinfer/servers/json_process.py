"""A process that decodes long JSON bodies: `json.loads` lets no other thread run, for up to a tenth of a second."""

import contextlib
import marshal
import os
import struct
import subprocess
import sys
from typing import IO, Any

from rayinfer.errors import RequestError, RequestFailed
from rayinfer.servers.json_decoding import decode_json

PIECE_BYTES = 2**16  # of what is decoded; to load as much takes half a millisecond at most, in which no thread runs
NUM_SLICES = 8
NICENESS = 5  # below the router, which has tokens to send

_LENGTH = struct.Struct("<Q")
_PROGRAM = "from rayinfer.servers.json_process import decode_for_parent; decode_for_parent()"


class JsonProcess:
    """Decodes one body after the other in a process of its own, which the first body starts.

    The thread that waits for it loads the value in small pieces, so that other threads go on.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def decode(self, raw: bytes) -> Any:
        """Decode a body; raises RequestError for what `decode_json` refuses, RequestFailed if the process fails."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, raw)
            refusal, pieces = marshal.loads(_read(process.stdout))
        except (OSError, EOFError) as error:
            self.close()  # the next body gets another one
            raise RequestFailed("the process that decodes long bodies has ended") from error
        if refusal is not None:
            raise RequestError(*refusal)
        return _join(pieces)

    @property
    def pid(self) -> int | None:
        """The process's id; None before the first body."""
        return None if self._process is None else self._process.pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {_PROGRAM}"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        self.close()


def decode_for_parent() -> None:
    """Decode bodies from standard input until it ends; the program of the process."""
    os.nice(NICENESS)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            raw = _read(sys.stdin.buffer)
            try:
                answer: tuple[Any, ...] = (None, _split(decode_json(raw)))
            except RequestError as error:
                answer = ((error.message, error.param, error.code), None)
            _write(sys.stdout.buffer, marshal.dumps(answer))


def _read(stream: IO[bytes]) -> bytes:
    head = stream.read(_LENGTH.size)
    content = stream.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""
    if not content:
        raise EOFError
    return content


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def _split(value: Any) -> bytes | tuple[Any, ...]:
    """Write a value as bytes if these are few; else as its kind, a key and parts that are written alike."""
    content = marshal.dumps(value)
    if len(content) <= PIECE_BYTES or not isinstance(value, list | dict):
        return content
    if len(value) == 1:
        ((key, item),) = value.items() if isinstance(value, dict) else ((None, value[0]),)
        return "member" if isinstance(value, dict) else "item", key, [_split(item)]
    step = -(-len(value) // NUM_SLICES)
    if isinstance(value, dict):
        members = list(value.items())
        return "object", None, [_split(dict(members[at : at + step])) for at in range(0, len(members), step)]
    return "list", None, [_split(value[at : at + step]) for at in range(0, len(value), step)]


def _join(pieces: bytes | tuple[Any, ...]) -> Any:
    """Load what `_split` has written, in many short steps."""
    if isinstance(pieces, bytes):
        return marshal.loads(pieces)
    kind, key, parts = pieces
    if kind == "item":
        return [_join(parts[0])]
    if kind == "member":
        return {key: _join(parts[0])}
    if kind == "object":
        members: dict[str, Any] = {}
        for part in parts:
            members.update(_join(part))
        return members
    items: list[Any] = []
    for part in parts:
        items += _join(part)
    return items
