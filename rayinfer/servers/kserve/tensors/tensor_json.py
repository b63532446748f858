"""Tensors as JSON: lists, nested or flat, in row-major order."""

import json
from itertools import chain
from typing import Any

import numpy as np

from rayinfer.errors import InvalidParameter, shown
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES, Datatype
from rayinfer.servers.kserve.tensors.tensor_shapes import MAX_DIMENSIONS, check_num_elements

MAX_JSON_ELEMENTS = 2**18  # of a response, as of a request's body
PIECE_ELEMENTS = 2**12  # encoded at a time: other threads run in between
_TYPES: dict[str, frozenset[type]] = {
    "bool": frozenset({bool}),
    "integer": frozenset({int}),
    "float": frozenset({int, float}),
    "text": frozenset({str}),
}
_NAMES = {"bool": "true and false", "integer": "integers", "float": "numbers", "text": "strings"}


def decode_json_data(data: Any, datatype: Datatype, shape: tuple[int, ...], param: str) -> "np.ndarray[Any, Any]":
    """Make an array of JSON's lists; raises InvalidParameter."""
    if not datatype.kind:
        raise InvalidParameter(f"{param}: {datatype.name} has no form in JSON, send binary data", param)
    if not isinstance(data, list):
        raise InvalidParameter(f"{param} must be a list", param)
    values = _flatten(data, param)
    check_num_elements(len(values), shape, param)
    if set(map(type, values)) - _TYPES[datatype.kind]:
        wrong = next(value for value in values if type(value) not in _TYPES[datatype.kind])
        kind = "a string" if isinstance(wrong, str) else "an object" if isinstance(wrong, dict) else shown(wrong)
        raise InvalidParameter(f"{param} must hold {_NAMES[datatype.kind]} only, got {kind}", param)
    if datatype.kind == "text":
        return bytes_array([value.encode() for value in values], shape)
    _check_range(values, datatype, param)
    return np.array(values, datatype.numpy).reshape(shape)


def encode_json_data(tensor: Tensor) -> bytes:
    """Write a tensor's elements as one flat list; raises InvalidParameter for what JSON cannot carry."""
    datatype = DATATYPES[tensor.datatype]
    values = tensor.data.reshape(-1)
    if not datatype.kind:
        raise InvalidParameter(f"the output {tensor.name!r}: {datatype.name} has no form in JSON{_HINT}", tensor.name)
    if values.size > MAX_JSON_ELEMENTS:
        raise InvalidParameter(
            f"the output {tensor.name!r} has {values.size} elements, in JSON at most {MAX_JSON_ELEMENTS}{_HINT}",
            tensor.name,
        )
    if datatype.kind == "float" and not np.isfinite(values).all():
        raise InvalidParameter(
            f"the output {tensor.name!r} holds infinities or NaN, which JSON does not have{_HINT}", tensor.name
        )
    pieces = (values[start : start + PIECE_ELEMENTS] for start in range(0, values.size, PIECE_ELEMENTS))
    return b"[" + b",".join(_encode_piece(piece, tensor) for piece in pieces) + b"]"


def bytes_array(elements: list[bytes], shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    """Make an array of bytes objects."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


_HINT = ": ask for binary data (binary_data_output)"


def _flatten(data: list[Any], param: str) -> list[Any]:
    """Flatten nested lists; those of one level are lists all or none."""
    for _ in range(MAX_DIMENSIONS + 1):
        is_list = {type(value) is list for value in data}
        if is_list != {True}:
            if True in is_list:
                break
            return data
        data = list(chain.from_iterable(data))
    raise InvalidParameter(f"{param} must be lists of one depth, at most {MAX_DIMENSIONS}", param)


def _check_range(values: list[Any], datatype: Datatype, param: str) -> None:
    if not values:
        return
    if datatype.kind == "integer":
        low, high = min(values), max(values)
        if low < datatype.lowest or high > datatype.highest:
            wrong = low if low < datatype.lowest else high
            raise InvalidParameter(
                f"{param} must hold integers from {datatype.lowest} to {datatype.highest}, got {shown(wrong)}", param
            )
    elif datatype.kind == "float":
        largest = float(np.finfo(datatype.numpy).max)
        if not all(-largest <= value <= largest for value in values):  # also false for the infinities of 1e999
            wrong = next(value for value in values if not -largest <= value <= largest)
            raise InvalidParameter(f"{param} must hold finite {datatype.name} numbers, got {shown(wrong)}", param)


def _encode_piece(piece: "np.ndarray[Any, Any]", tensor: Tensor) -> bytes:
    values = piece.tolist()
    if tensor.datatype == "BYTES":
        try:
            values = [bytes(value).decode() for value in values]
        except UnicodeDecodeError:
            raise InvalidParameter(
                f"the output {tensor.name!r} holds bytes that are no UTF-8{_HINT}", tensor.name
            ) from None
    elif tensor.datatype == "FP32":
        # As short as tells a value from its neighbours in 32 bits.
        return b",".join(str(value).encode() for value in piece)
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))[1:-1].encode()
