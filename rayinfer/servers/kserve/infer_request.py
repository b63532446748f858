"""Inference requests and results as both transports have them, and their parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rayinfer.errors import InvalidParameter, NotSupported, shown
from rayinfer.priority_queue import BACKGROUND_PRIORITY
from rayinfer.protocols import Tensor

MAX_ID_CHARS = 128
MAX_NAME_CHARS = 256
MAX_PARAMETERS = 64
MAX_PRIORITY = BACKGROUND_PRIORITY
MAX_CLASSES = 4096
MAX_TIMEOUT_US = 2**63 - 1
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
SHARED_MEMORY_MESSAGE = "Shared memory is not supported: send tensors with the request."

Parameters = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedOutput:
    """An output that a request asks for."""

    name: str
    num_classes: int = 0  # of the classification extension; 0: the tensor itself


@dataclass(frozen=True, kw_only=True, slots=True)
class InferSettings:
    """Parameters of a request that the service itself reads, and those of the model."""

    priority: int = 0
    timeout_s: float | None = None
    model: Parameters = field(default_factory=dict)

    def within(self, deadline_s: float | None) -> "InferSettings":
        """Return them with a deadline of the call, if that is earlier."""
        if deadline_s is None or (self.timeout_s is not None and self.timeout_s <= deadline_s):
            return self
        return replace(self, timeout_s=max(0.0, deadline_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class InferRequest:
    """Inputs and settings of one inference."""

    id: str = ""
    inputs: Mapping[str, Tensor]
    outputs: Sequence[RequestedOutput] | None = None  # None: all
    settings: InferSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class InferResult:
    """Outputs of one inference."""

    id: str
    model: str
    outputs: Sequence[Tensor]


def infer_settings(parameters: Parameters) -> InferSettings:
    """Read the parameters of a request; raises InvalidParameter and NotSupported."""
    rest = dict(parameters)
    for name in SEQUENCE:
        if rest.pop(name, None) not in (None, 0, False, ""):
            raise InvalidParameter(f"{name} is not supported: no model here keeps state between requests", name)
    for name in SHARED_MEMORY:
        if name in rest:
            raise NotSupported(SHARED_MEMORY_MESSAGE, name)
    priority = _integer("priority", rest.pop("priority", None), -MAX_PRIORITY, MAX_PRIORITY) or 0
    timeout_us = _integer("timeout", rest.pop("timeout", None), 0, MAX_TIMEOUT_US)
    return InferSettings(priority=priority, timeout_s=timeout_us / 1e6 if timeout_us else None, model=rest)


def check_id(request_id: object) -> str:
    """Return a request's id; raises InvalidParameter."""
    if request_id is None:
        return ""
    if not isinstance(request_id, str) or len(request_id) > MAX_ID_CHARS:
        raise InvalidParameter(f"id must be a string of at most {MAX_ID_CHARS} characters", "id")
    return request_id


def check_tensor_name(name: object, param: str, known: Mapping[str, Any]) -> str:
    """Return a tensor's name; raises InvalidParameter where it is none or known already."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise InvalidParameter(f"{param} must be a string of 1 to {MAX_NAME_CHARS} characters", param)
    if name in known:
        raise InvalidParameter(f"{param}: the name {name!r} comes twice", param)
    return name


def requested_output(name: str, parameters: Parameters, param: str) -> RequestedOutput:
    """Make a requested output of its name and parameters; raises InvalidParameter and NotSupported."""
    for memory in SHARED_MEMORY:
        if memory in parameters:
            raise NotSupported(SHARED_MEMORY_MESSAGE, f"{param}.{memory}")
    num_classes = _integer(f"{param}.classification", parameters.get("classification"), 0, MAX_CLASSES)
    return RequestedOutput(name=name, num_classes=num_classes or 0)


def check_parameters(parameters: Any, param: str, *, allows_lists: bool = False) -> dict[str, Any]:
    """Return parameters, which are an object of scalars; raises InvalidParameter."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict) or len(parameters) > MAX_PARAMETERS:
        raise InvalidParameter(f"{param} must be an object of at most {MAX_PARAMETERS} members", param)
    if not allows_lists:
        for name, value in parameters.items():
            if not isinstance(value, bool | int | float | str | None):
                raise InvalidParameter(f"{param}.{name:.80} must be a string, a number, true or false", param)
    return parameters


def _integer(param: str, value: object, low: int, high: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        kind = "a string" if isinstance(value, str) else "a list" if isinstance(value, list) else shown(value)
        raise InvalidParameter(f"{param} must be an integer from {low} to {high}, got {kind}", param)
    return value
