"""The classification extension: the highest values of an output, with their indices and labels."""

from collections.abc import Sequence

import numpy as np

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.tensors.tensor_json import bytes_array

_WITHOUT_ORDER = ("BYTES", "BOOL", "BF16")


def classify(tensor: Tensor, num_classes: int, labels: Sequence[str], *, is_batch: bool) -> Tensor:
    """Replace a tensor by the `num_classes` highest values of each of its rows, as texts `value:index[:label]`.

    The first dimension of a batch counts rows; anything else is one row. Raises InvalidParameter.
    """
    if tensor.datatype in _WITHOUT_ORDER:
        raise InvalidParameter(
            f"classification: the output {tensor.name!r} of {tensor.datatype} has no classes", "classification"
        )
    data = tensor.data
    num_rows = data.shape[0] if is_batch and data.ndim else 1
    rows = data.reshape(num_rows, -1) if data.size else data.reshape(num_rows, 0)
    num_classes = min(num_classes, rows.shape[1])
    elements: list[bytes] = []
    for row in rows:
        # Of equal values the first comes first: they are the last of the reversed row.
        order = len(row) - 1 - np.argsort(row[::-1], kind="stable")[::-1][:num_classes]
        elements += [_describe(row[index], int(index), labels) for index in order]
    shape = (num_rows, num_classes) if is_batch else (num_classes,)
    return Tensor(tensor.name, "BYTES", bytes_array(elements, shape))


def _describe(value: np.generic, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, np.floating) else str(value)
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{number}:{index}{label}".encode()
