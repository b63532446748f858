"""Rows that have ended before their turn to be written, as a checkpoint keeps them."""

from collections.abc import Iterable
from types import NoneType
from typing import Any

import msgspec

from rayinfer.jobs.providers import RowOutput

MAX_BYTES = 16 * 2**20  # of one checkpoint; rows beyond are computed again by a resumed job
_MAX_INTEGER = 2**63 - 1


def encode_rows(outputs: Iterable[RowOutput]) -> tuple[int, bytes]:
    """Return how many rows are kept, and their bytes; rows whose values would not come back as they are, are not."""
    encoder, kept, size = msgspec.msgpack.Encoder(), [], 0
    for output in outputs:
        if not _comes_back(dict(output.columns)):
            continue
        try:
            packed = encoder.encode(output)
        except UnicodeEncodeError:
            continue
        size += len(packed)
        if size > MAX_BYTES:
            break
        kept.append(msgspec.Raw(packed))
    return len(kept), encoder.encode(kept) if kept else b""


def decode_rows(content: bytes) -> dict[int, RowOutput]:
    """Return the rows of `encode_rows` by index."""
    if not content:
        return {}
    return {output.index: output for output in msgspec.msgpack.decode(content, type=list[RowOutput])}


def _comes_back(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(name) is str and _comes_back(part) for name, part in value.items())
    if kind is list:
        return all(map(_comes_back, value))
    if kind is int:
        return bool(-_MAX_INTEGER <= value <= _MAX_INTEGER)
    return kind in (str, float, bool, bytes, NoneType)
