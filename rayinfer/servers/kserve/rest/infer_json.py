"""Inference requests from JSON with binary data behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayinfer.errors import InvalidParameter, NotSupported
from rayinfer.protocols import Tensor
from rayinfer.servers.kserve.infer_request import (
    SHARED_MEMORY,
    SHARED_MEMORY_MESSAGE,
    InferRequest,
    RequestedOutput,
    check_id,
    check_parameters,
    check_tensor_name,
    infer_settings,
    requested_output,
)
from rayinfer.servers.kserve.tensors.datatypes import find_datatype
from rayinfer.servers.kserve.tensors.tensor_binary import decode_binary_data
from rayinfer.servers.kserve.tensors.tensor_json import decode_json_data
from rayinfer.servers.kserve.tensors.tensor_shapes import check_num_tensors, check_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class BinaryOutputs:
    """Choice of the outputs that are sent in their binary form."""

    default: bool = False
    by_name: Mapping[str, bool] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        """Return whether an output is sent in its binary form."""
        return self.by_name.get(name, self.default)


@dataclass(frozen=True, kw_only=True, slots=True)
class RestInferRequest:
    """An inference request, and the form of its response."""

    request: InferRequest
    binary_outputs: BinaryOutputs


def read_infer_request(body: Mapping[str, Any], binary: memoryview) -> RestInferRequest:
    """Check a body and decode its tensors, in the order of which the binary data comes; raises RequestError."""
    parameters = check_parameters(body.get("parameters"), "parameters")
    by_default = _flag("parameters.binary_data_output", parameters.pop("binary_data_output", None))
    inputs = _read_inputs(body.get("inputs"), binary)
    outputs, by_name = _read_outputs(body.get("outputs"))
    request = InferRequest(
        id=check_id(body.get("id")), inputs=inputs, outputs=outputs, settings=infer_settings(parameters)
    )
    return RestInferRequest(request=request, binary_outputs=BinaryOutputs(default=bool(by_default), by_name=by_name))


def _read_inputs(entries: Any, binary: memoryview) -> dict[str, Tensor]:
    if not isinstance(entries, list):
        raise InvalidParameter("inputs must be a list of tensors", "inputs")
    check_num_tensors(len(entries), "inputs")
    inputs: dict[str, Tensor] = {}
    position = 0
    for index, entry in enumerate(entries):
        param = f"inputs.{index}"
        if not isinstance(entry, dict):
            raise InvalidParameter(f"{param} must be an object", param)
        name = check_tensor_name(entry.get("name"), f"{param}.name", inputs)
        datatype = find_datatype(entry.get("datatype"), f"{param}.datatype")
        shape = check_shape(entry.get("shape"), f"{param}.shape")
        parameters = check_parameters(entry.get("parameters"), f"{param}.parameters")
        for memory in SHARED_MEMORY:
            if memory in parameters:
                raise NotSupported(SHARED_MEMORY_MESSAGE, f"{param}.parameters.{memory}")
        size = parameters.get("binary_data_size")
        if size is None:
            data = decode_json_data(entry.get("data"), datatype, shape, f"{param}.data")
        else:
            _check_binary_size(size, entry, len(binary) - position, param)
            data = decode_binary_data(binary[position : position + size], datatype, shape, param)
            position += size
        inputs[name] = Tensor(name, datatype.name, data)
    if position != len(binary):
        raise InvalidParameter(f"{len(binary) - position} bytes behind the JSON belong to no input", "inputs")
    return inputs


def _check_binary_size(size: Any, entry: Mapping[str, Any], num_left: int, param: str) -> None:
    name = f"{param}.parameters.binary_data_size"
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidParameter(f"{name} must be a whole number of bytes", name)
    if "data" in entry:
        raise InvalidParameter(f"{param} must have data or binary_data_size, not both", param)
    if size > num_left:
        raise InvalidParameter(f"{name}: only {num_left} bytes of binary data are left", name)


def _read_outputs(entries: Any) -> tuple[list[RequestedOutput] | None, dict[str, bool]]:
    if entries is None or entries == []:
        return None, {}
    if not isinstance(entries, list):
        raise InvalidParameter("outputs must be a list", "outputs")
    check_num_tensors(len(entries), "outputs")
    outputs: dict[str, RequestedOutput] = {}
    by_name: dict[str, bool] = {}
    for index, entry in enumerate(entries):
        param = f"outputs.{index}"
        if not isinstance(entry, dict):
            raise InvalidParameter(f"{param} must be an object", param)
        name = check_tensor_name(entry.get("name"), f"{param}.name", outputs)
        parameters = check_parameters(entry.get("parameters"), f"{param}.parameters")
        is_binary = _flag(f"{param}.parameters.binary_data", parameters.get("binary_data"))
        if is_binary is not None:
            by_name[name] = is_binary
        outputs[name] = requested_output(name, parameters, f"{param}.parameters")
    return list(outputs.values()), by_name


def _flag(param: str, value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidParameter(f"{param} must be true or false", param)
    return value
