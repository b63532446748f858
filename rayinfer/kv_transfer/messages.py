"""Messages between block servers and agents: framed MessagePack, and after each request raw blocks behind headers."""

import socket
import struct
import time
from typing import NamedTuple

import msgspec
import xxhash

from rayinfer.kv_store.store import BlockName
from rayinfer.wire import LENGTH_BYTES, BadMessage, Decoder, Message, decode, decoder_of, frame_bytes

VERSION = 1  # changes with everything that the other end could not read
MAX_READ_BLOCKS = 256  # that one request names
MAX_READ_BYTES = 64 * 1024  # of such a request
BLOCK_HEADER = struct.Struct("<?16s")  # whether the block follows, and its digest


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """An agent's first message."""

    version: int
    key: bytes
    identity: bytes  # of the blocks, as their file has it
    block_bytes: int


class Answer(msgspec.Struct, tag="answer", array_like=True, frozen=True):
    """Answer to the greeting of a peer that has the key; the reason is empty where its requests are served."""

    reason: str


class Read(msgspec.Struct, tag="read", array_like=True, frozen=True):
    """Blocks to be sent in this order, up to the first that is not there."""

    keys: list[bytes]
    contents: list[bytes]
    wait_s: float  # for those that are not there yet


FROM_AGENT: Decoder[Hello | Read] = decoder_of(Hello | Read)
FROM_SERVER: Decoder[Answer] = decoder_of(Answer)


class BlockHeader(NamedTuple):
    """Header that precedes a block."""

    is_there: bool  # else no block follows, and the request has ended
    digest: bytes


def block_digest(name: BlockName, block: memoryview) -> bytes:
    """Digest a block together with its name, so that neither spoiled nor mistaken blocks are accepted."""
    digest = xxhash.xxh3_128(name.key + name.content)
    digest.update(block)
    return digest.digest()


def receive(sender: socket.socket, decoder: Decoder[Message], max_bytes: int, deadline: float) -> Message | None:
    """Read one message; None at the end of the stream. Raises BadMessage and OSError, TimeoutError among them."""
    length = bytearray(LENGTH_BYTES)
    if not receive_into(sender, memoryview(length), deadline, may_end=True):
        return None
    data = bytearray(frame_bytes(length, max_bytes) - LENGTH_BYTES)
    receive_into(sender, memoryview(data), deadline)
    return decode(decoder, data)


def receive_into(sender: socket.socket, target: memoryview, deadline: float, *, may_end: bool = False) -> bool:
    """Fill `target`; raises TimeoutError at the deadline, however slowly bytes arrive, ConnectionError at the end.

    With `may_end`, returns False where the stream ends before the first byte.
    """
    num_received = 0
    while num_received < len(target):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer is too slow")
        sender.settimeout(left_s)
        count = sender.recv_into(target[num_received:])
        if not count:
            if may_end and not num_received:
                return False
            raise ConnectionError("the peer has closed the connection")
        num_received += count
    return True


def checked_names(read: Read) -> list[BlockName]:
    """Return the names of a request; raises BadMessage where they are too many or no pairs."""
    if len(read.keys) != len(read.contents) or len(read.keys) > MAX_READ_BLOCKS:
        raise BadMessage(f"a request for {len(read.keys)} keys and {len(read.contents)} contents")
    return [BlockName(key, content) for key, content in zip(read.keys, read.contents, strict=True)]
