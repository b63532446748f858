"""Layout of a store's file: a header, a table with one record for each slot, and the slots."""

import struct
from dataclasses import dataclass
from typing import Self

import xxhash

from rayinfer.kv_store.contents import CONTENT_BYTES

PAGE_BYTES = 4096
KEY_BYTES = 16  # a block's chain hash; zero in slots that hold nothing
STAMP_BYTES = 8  # time of the latest use, in nanoseconds since 1970
DIGEST_BYTES = 16  # of key, content and block
RECORD_BYTES = KEY_BYTES + STAMP_BYTES + CONTENT_BYTES + DIGEST_BYTES
IDENTITY_BYTES = 32
_MAGIC = b"rayinfer KV 1\n"
_LABEL_BYTES = 96
_HEADER = struct.Struct(f"<16s{IDENTITY_BYTES}sQQ{_LABEL_BYTES}s")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLayout:
    """Places of header, table and slots in a file; slots begin at pages."""

    block_bytes: int
    num_slots: int

    @classmethod
    def within(cls, block_bytes: int, max_bytes: int) -> Self:
        """Return the layout with the most slots in a file of at most `max_bytes`; it may have none."""
        num_slots = max(0, max_bytes - 2 * PAGE_BYTES) // (_in_pages(block_bytes) + RECORD_BYTES)
        return cls(block_bytes=block_bytes, num_slots=num_slots)

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next."""
        return _in_pages(self.block_bytes)

    @property
    def data_offset(self) -> int:
        """Bytes of header and table, which are mapped."""
        return PAGE_BYTES + _in_pages(self.num_slots * RECORD_BYTES)

    @property
    def num_bytes(self) -> int:
        """Bytes of the file once all slots are in use."""
        return self.data_offset + self.num_slots * self.slot_bytes

    def slot_offset(self, slot: int) -> int:
        """Return where a slot begins."""
        return self.data_offset + slot * self.slot_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class FileHeader:
    """First page of a file: whose blocks it holds, and its layout."""

    identity: bytes  # digest of all that keys and values depend on besides the tokens: weights, types, kernels
    layout: FileLayout
    label: str  # the model's name, for listings

    def encode(self) -> bytes:
        """Return the header with a digest behind it."""
        label = self.label.encode()[:_LABEL_BYTES]
        packed = _HEADER.pack(_MAGIC, self.identity, self.layout.block_bytes, self.layout.num_slots, label)
        return packed + xxhash.xxh3_128_digest(packed)

    @classmethod
    def decode(cls, page: bytes) -> Self | None:
        """Read a header; None where there is none, or not all of it."""
        packed, digest = page[: _HEADER.size], page[_HEADER.size : _HEADER.size + DIGEST_BYTES]
        if len(packed) < _HEADER.size or xxhash.xxh3_128_digest(packed) != digest:
            return None
        magic, identity, block_bytes, num_slots, label = _HEADER.unpack(packed)
        if magic.rstrip(b"\0") != _MAGIC or not block_bytes or not num_slots:
            return None
        layout = FileLayout(block_bytes=block_bytes, num_slots=num_slots)
        return cls(identity=identity, layout=layout, label=label.rstrip(b"\0").decode(errors="replace"))


def _in_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
