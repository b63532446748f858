"""Arrays of numbers in responses: lists of JSON, or base64 of little-endian float32."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.errors import RequestFailed

MANY_NUMBERS = 4096  # take milliseconds to write

FloatArray = npt.NDArray[np.float32]


def check_finite(numbers: FloatArray) -> FloatArray:
    """Return the numbers; raises RequestFailed where JSON could not carry one of them."""
    if not np.isfinite(numbers).all():
        raise RequestFailed("the model returned numbers that are not finite")
    return numbers


def json_numbers(numbers: FloatArray) -> bytes:
    """Write an array as nested lists, piece by piece: other threads run in between."""
    if numbers.ndim > 1:
        return b"[" + b",".join(json_numbers(row) for row in numbers) + b"]"
    values = check_finite(numbers)
    if values.size <= MANY_NUMBERS:
        return json.dumps(values.tolist()).encode()
    pieces = (values[start : start + MANY_NUMBERS] for start in range(0, values.size, MANY_NUMBERS))
    return b"[" + b",".join(json.dumps(piece.tolist()).encode()[1:-1] for piece in pieces) + b"]"


def base64_numbers(numbers: FloatArray) -> bytes:
    """Write an array as a JSON string of base64."""
    return b'"' + base64.b64encode(check_finite(numbers).astype("<f4", copy=False).tobytes()) + b'"'


def json_list(values: Sequence[bytes]) -> bytes:
    """Join encoded values into a list."""
    return b"[" + b",".join(values) + b"]"


def json_object(fields: dict[str, Any], **encoded: bytes) -> bytes:
    """Write an object of plain fields and, behind them, values that are encoded already."""
    head = json.dumps(fields, ensure_ascii=False).encode(errors="replace")[:-1]
    members = [json.dumps(name).encode() + b":" + value for name, value in encoded.items()]
    return b",".join([head, *members] if fields else [b"{" + members[0], *members[1:]]) + b"}"


def json_value(value: Any) -> bytes:
    """Write a value of plain lists and objects."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")
