"""Frames of the connection: four bytes of length, and a MessagePack value of one of these kinds.

Both ends check what they read against the types that are named here; nothing that is read can run as code.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from rayinfer.errors import RayinferError
from rayinfer.outputs import StepMessage
from rayinfer.protocols import GenerationRequest

VERSION = 1  # changes with everything that the other end could not read
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
MAX_HELLO_BYTES = 4096  # of a peer that has not shown the key yet

Frame = TypeVar("Frame")


class BadFrame(RayinferError):
    """A frame that cannot be decoded."""


class HelloFrame(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """A router's first frame."""

    version: int
    key: bytes
    router_id: str


class SubmitFrame(msgspec.Struct, tag="submit", array_like=True, frozen=True):
    """Requests for the engine."""

    requests: list[GenerationRequest]


class AbortFrame(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """Requests that need not go on."""

    request_ids: list[str]


class StepFrame(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """The results of one engine step for the router."""

    message: StepMessage


class EndFrame(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """The engine's final frame; empty after an orderly shutdown."""

    reason: str


FromRouter = msgspec.msgpack.Decoder(HelloFrame | SubmitFrame | AbortFrame)
FromEngine = msgspec.msgpack.Decoder(StepFrame | EndFrame)
_ENCODER = msgspec.msgpack.Encoder()


def encode_frame(frame: msgspec.Struct) -> bytes:
    """Make the bytes of one frame."""
    value = _ENCODER.encode(frame)
    return len(value).to_bytes(LENGTH_BYTES, "big") + value


async def read_frame(
    reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Frame], max_bytes: int = MAX_FRAME_BYTES
) -> Frame | None:
    """Read the next frame; None where the line ends. Raises BadFrame, ConnectionError."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if length > max_bytes:
            raise BadFrame(f"a frame of {length} bytes, at most {max_bytes} are taken")
        return decoder.decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        return None
    except msgspec.MsgspecError as error:
        raise BadFrame(str(error)) from None


async def read_frames(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Frame]) -> AsyncIterator[Frame]:
    """Yield frames until the line ends. Raises BadFrame, ConnectionError."""
    while (frame := await read_frame(reader, decoder)) is not None:
        yield frame
