"""Reads a SentencePiece model (Kudo and Richardson 2018), which is a protocol buffer, as far as tokenizing needs it."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ModelLoadError
from rayinfer.tokenization.character_map import CharacterMap

NORMAL, UNKNOWN = 1, 2  # kinds of pieces; others stand for nothing in a text
UNIGRAM = 1
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_KIND = 1, 2, 3
_MODEL_KIND, _CHARACTER_MAP = 3, 2

Field = tuple[int, int | bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry of the vocabulary."""

    text: str
    score: float  # log probability
    kind: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A Unigram vocabulary, and the table by which characters are normalized first, if any."""

    pieces: list[Piece]
    character_map: CharacterMap | None


def read_sentencepiece_model(file: Path) -> SentencePieceModel:
    """Read a .spm file; raises ModelLoadError that names it."""
    try:
        return _parse(file.read_bytes())
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise ModelLoadError(f"{file}: not a Unigram model of SentencePiece: {error}") from None


def _parse(data: bytes) -> SentencePieceModel:
    pieces, trainer, normalizer = [], b"", b""
    for number, value in _fields(data):
        if number == _PIECES:
            pieces.append(_piece(_as_bytes(value)))
        elif number == _TRAINER:
            trainer = _as_bytes(value)
        elif number == _NORMALIZER:
            normalizer = _as_bytes(value)
    if (kind := dict(_fields(trainer)).get(_MODEL_KIND, UNIGRAM)) != UNIGRAM:
        raise ValueError(f"it is of kind {kind!r}")
    if not any(piece.kind == NORMAL for piece in pieces):
        raise ValueError("it has no pieces")
    table = _as_bytes(dict(_fields(normalizer)).get(_CHARACTER_MAP, b""))
    return SentencePieceModel(pieces, CharacterMap(table) if table else None)


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", _as_bytes(fields.get(_PIECE_SCORE, bytes(4))))
    kind = fields.get(_PIECE_KIND, NORMAL)
    assert isinstance(kind, int)
    return Piece(_as_bytes(fields[_PIECE_TEXT]).decode(), score, kind)


def _fields(data: bytes) -> Iterator[Field]:
    """Yield a message's fields by number; numbers of fixed width as their bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            length, at = _varint(data, at)
        elif wire_type in (_FOUR_BYTES, _EIGHT_BYTES):
            length = 4 if wire_type == _FOUR_BYTES else 8
        else:
            raise ValueError(f"no wire type is {wire_type}")
        if at + length > len(data):
            raise ValueError("it ends early")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, the lowest first; returns it and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type than it should")
    return value
