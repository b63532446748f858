"""Results of inferences as JSON, with binary data behind it."""

import json
from dataclasses import dataclass

from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.infer_request import InferResult
from rayinfer.servers.kserve.repository import VERSION
from rayinfer.servers.kserve.rest.infer_json import BinaryOutputs
from rayinfer.servers.kserve.tensors.tensor_binary import encode_binary_data
from rayinfer.servers.kserve.tensors.tensor_json import encode_json_data

MANY_ELEMENTS = 2**12  # that take milliseconds to encode


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """The parts of a response's body."""

    header: bytes
    binary: bytes | None  # None where no output is binary


def is_slow_to_encode(result: InferResult) -> bool:
    """Return whether it takes milliseconds to encode a result."""
    return sum(tensor.data.size for tensor in result.outputs) > MANY_ELEMENTS


def encode_result(result: InferResult, binary_outputs: BinaryOutputs) -> EncodedResult:
    """Write a result; raises InvalidParameter for an output that JSON cannot carry, unless it is sent as binary."""
    parts = [_encode_output(tensor, binary_outputs.covers(tensor.name)) for tensor in result.outputs]
    fields: dict[str, str] = {"id": result.id} if result.id else {}
    fields |= {"model_name": result.model, "model_version": VERSION}
    head = json.dumps(fields, ensure_ascii=False).encode()[:-1]
    header = head + b', "outputs": [' + b",".join(part.header for part in parts) + b"]}"
    blobs = [part.binary for part in parts if part.binary is not None]
    return EncodedResult(header, b"".join(blobs) if blobs else None)


def _encode_output(tensor: Tensor, is_binary: bool) -> EncodedResult:
    fields = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.data.shape)}
    if not is_binary:
        head = json.dumps(fields, ensure_ascii=False).encode()[:-1]
        return EncodedResult(head + b', "data": ' + encode_json_data(tensor) + b"}", None)
    binary = encode_binary_data(tensor)
    described = fields | {"parameters": {"binary_data_size": len(binary)}}
    return EncodedResult(json.dumps(described, ensure_ascii=False).encode(), binary)
