"""Bounds on the pieces of an encoded inference request, counted before it is decoded.

To decode a map of 4 MiB takes half a second, in which Python runs nothing else: many small pieces are refused first.
"""

from collections.abc import Mapping

from rayinfer.errors import RequestError

MAX_PIECES = 2**14  # fields of all messages within the request; each input of typed texts has one for each element
MAX_VARINT_BYTES = 2**20  # of typed integers and flags, which are decoded one by one
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5

# The messages within ModelInferRequest: by the number of their field, the fields that are messages themselves.
_Fields = Mapping[int, "_Fields"]
_PARAMETERS: _Fields = {2: {}}
_CONTENTS: _Fields = {}
_REQUEST: _Fields = {4: _PARAMETERS, 5: {4: _PARAMETERS, 5: _CONTENTS}, 6: {2: _PARAMETERS}}
_PACKED_VARINTS = (1, 2, 3, 4, 5)  # of InferTensorContents


def check_message_bounds(raw: bytes) -> None:
    """Raise RequestError for too many pieces, and for what is no message."""
    try:
        _Counter(raw).count(0, len(raw), _REQUEST)
    except IndexError:
        raise RequestError("The call's message cannot be decoded.") from None


class _Counter:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._num_pieces = 0
        self._num_varint_bytes = 0

    def count(self, position: int, end: int, fields: _Fields) -> None:
        """Count the fields of one message and of those within it; raises IndexError where one leads out of it."""
        while position < end:
            tag, position = self._varint(position)
            self._num_pieces += 1
            if self._num_pieces > MAX_PIECES:
                raise RequestError(f"The call's message has more than {MAX_PIECES} fields: send raw contents.")
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                position = self._varint(position)[1]
            elif kind == _LENGTH:
                length, position = self._varint(position)
                if position + length > end:
                    raise IndexError
                if number in fields:
                    self.count(position, position + length, fields[number])
                elif fields is _CONTENTS and number in _PACKED_VARINTS:
                    self._count_varint_bytes(length)
                position += length
            elif kind in (_FIXED_64, _FIXED_32):
                position += 8 if kind == _FIXED_64 else 4
            else:
                raise IndexError
        if position > end:
            raise IndexError

    def _count_varint_bytes(self, length: int) -> None:
        self._num_varint_bytes += length
        if self._num_varint_bytes > MAX_VARINT_BYTES:
            raise RequestError(
                f"The call's typed contents have more than {MAX_VARINT_BYTES} bytes of integers: send raw contents."
            )

    def _varint(self, position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._raw[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, position
            shift += 7
            if shift > 63:
                raise IndexError
