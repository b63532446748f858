"""Tensors in both of their forms, and the classification extension."""

import json

import numpy as np
import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.tensors.classification import classify
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES
from rayinfer.servers.kserve.tensors.tensor_binary import decode_binary_data, encode_binary_data
from rayinfer.servers.kserve.tensors.tensor_json import (
    MAX_JSON_ELEMENTS,
    bytes_array,
    decode_json_data,
    encode_json_data,
)

SHAPE = (2, 3)


def values_of(datatype):
    """Six values with the extremes of their datatype."""
    if datatype.kind == "integer":
        return [datatype.lowest, datatype.highest, 0, 1, 2, 3]
    if datatype.kind == "float":
        largest = float(np.finfo(datatype.numpy).max)
        return [-largest, largest, 0.0, 0.1, -1.5, 1e-30]
    return {"bool": [True, False] * 3, "text": ["", "a", "ü", "\0", "x" * 300, "\U0001f600"]}[datatype.kind]


@pytest.mark.parametrize("datatype", [each for each in DATATYPES.values() if each.kind], ids=lambda each: each.name)
def test_json_data_comes_back_as_it_was(datatype):
    values = values_of(datatype)
    array = decode_json_data([values[:3], values[3:]], datatype, SHAPE, "data")
    assert array.shape == SHAPE
    written = json.loads(encode_json_data(Tensor("OUT", datatype.name, array)))
    if datatype.name == "FP32":
        assert np.array(written, np.float32).tobytes() == np.array(values, np.float32).tobytes()
    else:
        assert written == values
    flat = decode_json_data(values, datatype, SHAPE, "data")
    assert flat.tolist() == array.tolist()


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=lambda each: each.name)
def test_binary_data_comes_back_bit_by_bit(datatype):
    if datatype.name == "BYTES":
        raw = b"".join(
            len(each).to_bytes(4, "little") + each for each in (b"", b"a", b"\xff\0", b"b" * 70000, b"", b"c")
        )
    elif datatype.name == "BOOL":
        raw = bytes([0, 1, 1, 0, 0, 1])
    else:
        raw = bytes(range(251, 251 - 6 * datatype.size, -1))
    array = decode_binary_data(raw, datatype, SHAPE, "data")
    assert array.shape == SHAPE
    assert encode_binary_data(Tensor("OUT", datatype.name, array)) == raw


def test_empty_tensors_have_both_forms():
    for datatype in DATATYPES.values():
        array = decode_binary_data(b"", datatype, (0, 4), "data")
        assert encode_binary_data(Tensor("OUT", datatype.name, array)) == b""
        if datatype.kind:
            assert decode_json_data([], datatype, (0, 4), "data").shape == (0, 4)
            assert encode_json_data(Tensor("OUT", datatype.name, array)) == b"[]"


def test_a_scalar_is_a_list_of_one_element():
    array = decode_json_data([7], DATATYPES["INT32"], (), "data")
    assert array.shape == ()
    assert encode_json_data(Tensor("OUT", "INT32", array)) == b"[7]"


def test_json_outputs_are_bounded():
    array = np.zeros(MAX_JSON_ELEMENTS + 1, np.uint8)
    with pytest.raises(InvalidParameter, match="at most"):
        encode_json_data(Tensor("OUT", "UINT8", array))


def test_classes_are_the_highest_values_of_each_row():
    tensor = Tensor("OUT", "FP32", np.array([[0.25, 2, 2, -1], [4, 3, 2, 1]], np.float32))
    classes = classify(tensor, 2, ["cat", "dog"], is_batch=True)
    assert classes.data.tolist() == [[b"2.000000:1:dog", b"2.000000:2"], [b"4.000000:0:cat", b"3.000000:1:dog"]]
    assert classes.datatype == "BYTES"


def test_more_classes_than_values_are_all_of_them():
    tensor = Tensor("OUT", "UINT8", np.array([3, 255, 0], np.uint8))
    assert classify(tensor, 9, [], is_batch=False).data.tolist() == [b"255:1", b"3:0", b"0:2"]


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL", "BF16"])
def test_what_has_no_order_has_no_classes(datatype):
    data = bytes_array([b"a"], (1,)) if datatype == "BYTES" else np.zeros(1, DATATYPES[datatype].numpy)
    with pytest.raises(InvalidParameter, match="no classes"):
        classify(Tensor("OUT", datatype, data), 1, [], is_batch=False)
