"""Framing and decoding: hostile or truncated input ends in BadMessage, arrays arrive as they were sent."""

import asyncio

import msgspec
import numpy as np
import pytest

from rayinfer import wire
from rayinfer.engine.plan.step_plan import Int32Array, Int32Matrix

LENGTH = wire.LENGTH_BYTES


class Arrays(msgspec.Struct, tag="arrays", array_like=True, frozen=True):
    """A message with one array of each kind."""

    row: Int32Array
    matrix: Int32Matrix
    optional: Int32Array | None = None


class Text(msgspec.Struct, tag="text", array_like=True, frozen=True):
    """A message without arrays."""

    text: str


DECODER = wire.decoder_of(Arrays | Text)
ROW, MATRIX = np.arange(3, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)


def crossed(message):
    return wire.decode(DECODER, wire.encode(message)[LENGTH:])


@pytest.mark.parametrize(
    "message",
    [
        Arrays(ROW, MATRIX),
        Arrays(ROW[:0], MATRIX[:0], ROW[::2]),
        Arrays(ROW[::-1], MATRIX[:, 1:]),  # views that are not contiguous
        Arrays(ROW, np.zeros((2, 0), np.int32)),
    ],
)
def test_arrays_arrive_with_dtype_shape_and_memory_of_their_own(message):
    received = crossed(message)
    for name in Arrays.__struct_fields__:
        sent, array = getattr(message, name), getattr(received, name)
        if sent is None:
            assert array is None
            continue
        assert (array.dtype, array.shape, array.tolist()) == (sent.dtype, sent.shape, sent.tolist())
        assert array.flags.writeable


def packed(*fields):
    return msgspec.msgpack.encode(["arrays", *fields])


HUGE_LIST = b"\x93\xa6arrays\xdd\xff\xff\xff\xff"
DEEP = b"\x93\xa6arrays" + b"\x91" * 100_000
GOOD_ROW, GOOD_MATRIX = bytes(8), [1, 2, bytes(8)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xc1",  # invalid in MessagePack
        wire.encode(Arrays(ROW, MATRIX))[LENGTH:-1],
        msgspec.msgpack.encode(["unknown", "x"]),
        msgspec.msgpack.encode(["text", 1]),
        packed(GOOD_ROW),
        packed(bytes(7), GOOD_MATRIX),  # no whole number of elements
        packed("text", GOOD_MATRIX),
        packed(10**18, GOOD_MATRIX),  # a length, not bytes
        packed([0] * 8, GOOD_MATRIX),
        packed(GOOD_ROW, GOOD_ROW),
        packed(GOOD_ROW, [1, bytes(8)]),
        packed(GOOD_ROW, [1, 3, bytes(8)]),
        packed(GOOD_ROW, [-1, -2, bytes(8)]),
        packed(GOOD_ROW, [-1, 2, bytes(8)]),
        packed(GOOD_ROW, [1.0, 2.0, bytes(8)]),
        packed(GOOD_ROW, [1, 2, 8]),
        packed(GOOD_ROW, [2**40, 2**40, b""]),
        packed(GOOD_ROW, {"rows": 1}),
        packed(None, GOOD_MATRIX),
        HUGE_LIST,
        DEEP,
    ],
    ids=lambda data: repr(bytes(data[:24])),
)
def test_invalid_input_is_refused(data):
    with pytest.raises(wire.BadMessage, match="unreadable message"):
        wire.decode(DECODER, data)


def test_a_valid_message_that_was_packed_by_hand_is_accepted():
    assert wire.decode(DECODER, packed(GOOD_ROW, GOOD_MATRIX)).matrix.shape == (1, 2)


def test_other_objects_cannot_be_sent():
    with pytest.raises(TypeError, match="object cannot be sent"):
        wire.encode(Text(object()))
    assert crossed(Text("x")) == Text("x")


def reader_of(*pieces):
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    return reader


async def test_messages_are_read_one_by_one_however_they_are_cut():
    sent = wire.encode(Text("a")) + wire.encode(Text("b"))
    reader = reader_of(sent[:3], sent[3:7], sent[7:])
    assert [await wire.read_message(reader, DECODER) for _ in range(3)] == [Text("a"), Text("b"), None]


async def test_a_stream_that_breaks_within_a_message_has_ended():
    assert await wire.read_message(reader_of(wire.encode(Text("a"))[:-1]), DECODER) is None


async def test_a_message_that_is_too_long_is_not_read():
    with pytest.raises(wire.BadMessage, match="at most 10"):
        await wire.read_message(reader_of(wire.encode(Text("a" * 20))), DECODER, 10)
