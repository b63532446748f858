"""Wire format of the connections between ranks, and between engines and routers: framed MessagePack.

A frame is four bytes of length and one MessagePack value. It is checked against the types that the reader expects,
numpy arrays included: nothing that is read can run as code, and no input chooses a dtype.
"""

import asyncio
import hmac
import struct
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from numpy import frombuffer, ndarray

from rayinfer.errors import RayinferError

LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 1 << 30
MAX_HELLO_BYTES = 4096  # of a peer that has not authenticated yet

_LENGTH = struct.Struct(">I")

Message = TypeVar("Message")
Decoder = msgspec.msgpack.Decoder


class BadMessage(RayinferError):
    """A message that is too long, or cannot be decoded."""


def decoder_of(kinds: Any) -> Decoder[Any]:
    """Make a decoder of these message types, a union of tagged structs."""
    return Decoder(kinds, dec_hook=_decode_array)


def encode(message: msgspec.Struct) -> bytearray:
    """Encode one message, with its length in front."""
    frame = bytearray(LENGTH_BYTES)
    _ENCODER.encode_into(message, frame, LENGTH_BYTES)
    _LENGTH.pack_into(frame, 0, len(frame) - LENGTH_BYTES)
    return frame


def decode(decoder: Decoder[Message], data: bytes | bytearray | memoryview) -> Message:
    """Decode one message, given without its length; raises BadMessage."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(f"unreadable message of {len(data)} bytes: {error}") from None


def frame_bytes(data: bytes | bytearray, max_bytes: int = MAX_MESSAGE_BYTES) -> int:
    """Return the length of the frame that begins here; raises BadMessage above `max_bytes`."""
    length = int.from_bytes(data[:LENGTH_BYTES], "big")
    if length > max_bytes:
        raise BadMessage(f"a message of {length} bytes, at most {max_bytes} are accepted")
    return LENGTH_BYTES + length


async def read_message(
    reader: asyncio.StreamReader, decoder: Decoder[Message], max_bytes: int = MAX_MESSAGE_BYTES
) -> Message | None:
    """Read the next message; None at the end of the stream. Raises BadMessage, ConnectionError."""
    try:
        length = frame_bytes(await reader.readexactly(LENGTH_BYTES), max_bytes) - LENGTH_BYTES
        return decode(decoder, await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None


async def read_messages(reader: asyncio.StreamReader, decoder: Decoder[Message]) -> AsyncIterator[Message]:
    """Yield messages until the stream ends. Raises BadMessage, ConnectionError."""
    while (message := await read_message(reader, decoder)) is not None:
        yield message


def sign(key: str, text: str) -> bytes:
    """Sign a text with a shared key, which itself is never sent."""
    return hmac.digest(key.encode(), text.encode(), "sha256")


class _ArrayTypes(dict[Any, tuple[np.dtype[Any], bool]]):
    """The dtype of each array annotation, and whether it is a matrix; a lookup takes a third of functools.cache's."""

    def __missing__(self, annotation: Any) -> tuple[np.dtype[Any], bool]:
        """Read an annotation like np.ndarray[tuple[int, int], np.dtype[np.int32]]; NDArray has one dimension."""
        shape, dtype = annotation.__args__
        self[annotation] = np.dtype(dtype.__args__[0]), shape.__args__ == (int, int)
        return self[annotation]


_ARRAY_TYPES = _ArrayTypes()


def _encode_numpy(value: Any) -> Any:
    if type(value) is ndarray:
        if value.ndim == 1:
            return value.tobytes()
        num_rows, num_columns = value.shape
        return num_rows, num_columns, np.ascontiguousarray(value).data
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _decode_array(annotation: Any, value: Any) -> npt.NDArray[Any]:
    """Make a writable array, as torch needs it; raises TypeError and ValueError for anything but its bytes."""
    dtype, is_matrix = _ARRAY_TYPES[annotation]
    if is_matrix:
        return _decode_matrix(dtype, *value)
    if type(value) is not bytes:  # bytearray(10**18) would take memory
        raise TypeError(f"bytes of an array expected, got {type(value).__name__}")
    return frombuffer(bytearray(value), dtype)


def _decode_matrix(dtype: np.dtype[Any], num_rows: int, num_columns: int, data: bytes) -> npt.NDArray[Any]:
    if type(data) is not bytes or min(num_rows, num_columns) < 0:
        raise ValueError(f"a matrix of {num_rows!r} x {num_columns!r} with {type(data).__name__}")
    return frombuffer(bytearray(data), dtype).reshape(num_rows, num_columns)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_numpy)
