"""Inference requests and results as gRPC messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayinfer.errors import InvalidParameter, NotSupported
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.infer_request import (
    MAX_PARAMETERS,
    SHARED_MEMORY,
    SHARED_MEMORY_MESSAGE,
    InferRequest,
    InferResult,
    RequestedOutput,
    check_id,
    check_tensor_name,
    infer_settings,
    requested_output,
)
from rayinfer.servers.kserve.repository import VERSION
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES, Datatype, find_datatype
from rayinfer.servers.kserve.tensors.tensor_binary import decode_binary_data, encode_binary_data
from rayinfer.servers.kserve.tensors.tensor_json import PIECE_ELEMENTS, bytes_array
from rayinfer.servers.kserve.tensors.tensor_shapes import (
    MAX_BYTES_ELEMENTS,
    check_num_elements,
    check_num_tensors,
    check_shape,
)

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
FINAL_RESPONSE = "triton_final_response"


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcInferRequest:
    """An inference request, and the form of its response."""

    request: InferRequest
    is_raw: bool  # whether its tensors are raw contents, and so those of its response
    wants_final_response: bool  # in streams: an empty response behind the last


def read_infer_message(message: Any, deadline_s: float | None) -> GrpcInferRequest:
    """Check a message and decode its tensors; raises RequestError."""
    parameters = _read_parameters(message.parameters, "parameters")
    wants_final_response = parameters.pop(EMPTY_FINAL_RESPONSE, False) is True
    request = InferRequest(
        id=check_id(message.id),
        inputs=_read_inputs(message),
        outputs=_read_outputs(message),
        settings=infer_settings(parameters).within(deadline_s),
    )
    return GrpcInferRequest(
        request=request, is_raw=bool(message.raw_input_contents), wants_final_response=wants_final_response
    )


def write_infer_result(result: InferResult, *, is_raw: bool) -> Any:
    """Make a message of a result; FP16 and BF16 have raw contents only."""
    is_raw = is_raw or not all(DATATYPES[tensor.datatype].contents for tensor in result.outputs)
    response = pb.ModelInferResponse(model_name=result.model, model_version=VERSION, id=result.id)
    for tensor in result.outputs:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        if is_raw:
            response.raw_output_contents.append(encode_binary_data(tensor))
        else:
            contents = getattr(output.contents, DATATYPES[tensor.datatype].contents)
            contents.extend(tensor.data.reshape(-1).tolist())
    return response


def _read_inputs(message: Any) -> dict[str, Tensor]:
    raw = message.raw_input_contents
    check_num_tensors(len(message.inputs), "inputs")
    if raw and len(raw) != len(message.inputs):
        raise InvalidParameter(
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs", "raw_input_contents"
        )
    inputs: dict[str, Tensor] = {}
    for index, entry in enumerate(message.inputs):
        param = f"inputs.{index}"
        name = check_tensor_name(entry.name, f"{param}.name", inputs)
        datatype = find_datatype(entry.datatype, f"{param}.datatype")
        shape = check_shape(entry.shape, f"{param}.shape")
        if any(memory in entry.parameters for memory in SHARED_MEMORY):
            raise NotSupported(SHARED_MEMORY_MESSAGE, f"{param}.parameters")
        if not raw:
            data = _decode_contents(entry.contents, datatype, shape, f"{param}.contents")
        elif entry.HasField("contents"):
            raise InvalidParameter(f"{param} must have contents or raw contents, not both", param)
        else:
            data = decode_binary_data(raw[index], datatype, shape, param)
        inputs[name] = Tensor(name, datatype.name, data)
    return inputs


def _decode_contents(contents: Any, datatype: Datatype, shape: tuple[int, ...], param: str) -> "np.ndarray[Any, Any]":
    for field, _ in contents.ListFields():
        if field.name != datatype.contents:
            kinds = datatype.contents or "raw_input_contents"
            raise InvalidParameter(f"{param}: {datatype.name} must come in {kinds}, got {field.name}", param)
    values: Any = getattr(contents, datatype.contents) if datatype.contents else ()
    check_num_elements(len(values), shape, param)
    if datatype.kind == "text":
        if len(values) > MAX_BYTES_ELEMENTS:
            raise InvalidParameter(f"{param} must have at most {MAX_BYTES_ELEMENTS} BYTES elements", param)
        return bytes_array(list(values), shape)
    array = np.empty(len(values), datatype.numpy)
    for start in range(0, len(values), PIECE_ELEMENTS):
        piece = values[start : start + PIECE_ELEMENTS]
        if datatype.kind == "integer":
            _check_integers(piece, datatype, param)
        array[start : start + PIECE_ELEMENTS] = piece
    return array.reshape(shape)


def _check_integers(values: list[int], datatype: Datatype, param: str) -> None:
    low, high = min(values), max(values)
    if low < datatype.lowest or high > datatype.highest:
        wrong = low if low < datatype.lowest else high
        raise InvalidParameter(
            f"{param} must hold integers from {datatype.lowest} to {datatype.highest}, got {wrong}", param
        )


def _read_outputs(message: Any) -> list[RequestedOutput] | None:
    if not message.outputs:
        return None
    check_num_tensors(len(message.outputs), "outputs")
    outputs: dict[str, RequestedOutput] = {}
    for index, entry in enumerate(message.outputs):
        param = f"outputs.{index}"
        name = check_tensor_name(entry.name, f"{param}.name", outputs)
        parameters = _read_parameters(entry.parameters, f"{param}.parameters")
        outputs[name] = requested_output(name, parameters, f"{param}.parameters")
    return list(outputs.values())


def _read_parameters(parameters: Mapping[str, Any], param: str) -> dict[str, Any]:
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidParameter(f"{param} must have at most {MAX_PARAMETERS} members", param)
    return {
        name: getattr(value, chosen)
        for name, value in parameters.items()
        if (chosen := value.WhichOneof("parameter_choice")) is not None
    }
