"""Tensors in their binary form: little-endian elements in row-major order, BYTES with lengths of four bytes."""

import struct
from typing import Any

import numpy as np

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES, Datatype
from rayinfer.servers.kserve.tensors.tensor_json import bytes_array
from rayinfer.servers.kserve.tensors.tensor_shapes import MAX_BYTES_ELEMENTS, check_num_elements

_LENGTH = struct.Struct("<I")


def decode_binary_data(
    raw: bytes | memoryview, datatype: Datatype, shape: tuple[int, ...], param: str
) -> "np.ndarray[Any, Any]":
    """Make an array of a binary form; raises InvalidParameter. It may share the memory of `raw`."""
    if not datatype.size:
        elements = _split_elements(raw, param)
        check_num_elements(len(elements), shape, param)
        return bytes_array(elements, shape)
    if len(raw) % datatype.size:
        raise InvalidParameter(f"{param}: {len(raw)} bytes are no whole number of {datatype.name} elements", param)
    check_num_elements(len(raw) // datatype.size, shape, param)
    if datatype.kind == "bool" and (np.frombuffer(raw, np.uint8) > 1).any():
        raise InvalidParameter(f"{param}: the bytes of BOOL must be 0 and 1", param)
    return np.frombuffer(raw, datatype.numpy).reshape(shape)


def encode_binary_data(tensor: Tensor) -> bytes:
    """Write the binary form of a tensor."""
    datatype = DATATYPES[tensor.datatype]
    if datatype.size:
        return np.ascontiguousarray(tensor.data, datatype.numpy).tobytes()
    return b"".join(part for element in tensor.data.flat for part in (_LENGTH.pack(len(element)), element))


def _split_elements(raw: bytes | memoryview, param: str) -> list[bytes]:
    elements: list[bytes] = []
    position = 0
    while position < len(raw):
        end = position + _LENGTH.size
        if end > len(raw) or (stop := end + _LENGTH.unpack_from(raw, position)[0]) > len(raw):
            raise InvalidParameter(f"{param}: the BYTES element {len(elements)} is longer than its data", param)
        elements.append(bytes(raw[end:stop]))
        position = stop
        if len(elements) > MAX_BYTES_ELEMENTS:
            raise InvalidParameter(f"{param} must have at most {MAX_BYTES_ELEMENTS} BYTES elements", param)
    return elements
