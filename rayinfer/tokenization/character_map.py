"""The table by which SentencePiece normalizes characters before it cuts a text into pieces."""

import struct
from typing import NamedTuple

_LEAF, _LABEL, _VALUE = 1 << 8, 1 << 31 | 0xFF, 0x7FFFFFFF


class _Match(NamedTuple):
    num_bytes: int
    replacement: bytes


class CharacterMap:
    """Replaces, from left to right, the longest strings that the table, a double-array trie (Aoe 1989), holds.

    tokenizers' own `Precompiled` loses a mark behind a character that it replaces.
    """

    def __init__(self, data: bytes) -> None:
        """`data` is a model's `precompiled_charsmap`: the trie's size, the trie, replacements that end with a zero."""
        (num_bytes,) = struct.unpack_from("<I", data)
        self._trie = struct.unpack_from(f"<{num_bytes // 4}I", data, 4)
        self._replacements = data[4 + num_bytes :]

    def normalize(self, text: str) -> str:
        """Return the normalized text."""
        data, out, at = text.encode(), bytearray(), 0
        while at < len(data):
            match = self._longest_match(data, at)
            if match is None:
                end = at + 1
                while end < len(data) and data[end] & 0xC0 == 0x80:  # the rest of a character
                    end += 1
                out += data[at:end]
                at = end
            else:
                out += match.replacement
                at += match.num_bytes
        return out.decode()

    def _longest_match(self, data: bytes, start: int) -> _Match | None:
        node, found = _offset(self._trie[0]), None
        for at in range(start, len(data)):
            node ^= data[at]
            unit = self._trie[node]
            if unit & _LABEL != data[at]:
                break
            node ^= _offset(unit)
            if unit & _LEAF:
                found = at + 1 - start, self._trie[node] & _VALUE
        if found is None:
            return None
        num_bytes, begin = found
        return _Match(num_bytes, self._replacements[begin : self._replacements.index(0, begin)])


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
