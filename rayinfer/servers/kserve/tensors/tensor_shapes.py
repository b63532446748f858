"""Shapes of tensors: bounds, element counts, and the specifications of models."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.errors import InvalidParameter, shown
from rayinfer.protocols import Tensor, TensorModel, TensorSpec

MAX_DIMENSIONS = 16
MAX_ELEMENTS = 2**26  # of one tensor; a body has no room for as many
MAX_TENSORS = 64  # of one request
MAX_BYTES_ELEMENTS = 2**18  # each is an object, as is each value of JSON


def check_shape(shape: Any, param: str) -> tuple[int, ...]:
    """Return a shape as a tuple; raises InvalidParameter for anything but a few dimensions within bounds."""
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise InvalidParameter(f"{param} must be a list of integers", param)
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidParameter(f"{param} must have at most {MAX_DIMENSIONS} dimensions, got {len(shape)}", param)
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_ELEMENTS:
            raise InvalidParameter(f"{param} must hold integers from 0 to {MAX_ELEMENTS}, got {shown(size)}", param)
    if math.prod(shape) > MAX_ELEMENTS:
        raise InvalidParameter(f"{param} must have at most {MAX_ELEMENTS} elements, got {math.prod(shape)}", param)
    return tuple(shape)


def check_num_tensors(count: int, param: str) -> None:
    """Raise InvalidParameter for no tensor and for too many."""
    if not 1 <= count <= MAX_TENSORS:
        raise InvalidParameter(f"{param} must hold 1 to {MAX_TENSORS} tensors, got {count}", param)


def check_num_elements(found: int, shape: Sequence[int], param: str) -> None:
    """Raise InvalidParameter where the data has not as many elements as its shape."""
    wanted = math.prod(shape)
    if found != wanted:
        raise InvalidParameter(f"{param}: shape {list(shape)} has {wanted} elements, the data has {found}", param)


def check_inputs(model: TensorModel, inputs: Mapping[str, Tensor]) -> int:
    """Check inputs against a model's specifications and return the batch size; raises InvalidParameter."""
    specs = {spec.name: spec for spec in model.inputs}
    for name in specs.keys() - inputs.keys():
        raise InvalidParameter(f"the model {model.name!r} needs the input {name!r}", name)
    for name, tensor in inputs.items():
        if name not in specs:
            raise InvalidParameter(
                f"the model {model.name!r} has no input {name!r:.80}; it has {', '.join(specs)}", "inputs"
            )
        _check_spec(specs[name], tensor)
    if not model.max_batch_size:
        return 1
    sizes = {tensor.data.shape[0] for tensor in inputs.values()}
    if len(sizes) > 1:
        raise InvalidParameter(f"all inputs must have one batch size, got {sorted(sizes)}", "inputs")
    size = int(sizes.pop())
    if not 1 <= size <= model.max_batch_size:
        raise InvalidParameter(f"the batch size must be 1 to {model.max_batch_size}, got {size}", "inputs")
    return size


def _check_spec(spec: TensorSpec, tensor: Tensor) -> None:
    if spec.datatype and tensor.datatype != spec.datatype:
        raise InvalidParameter(
            f"the input {spec.name!r} must have the datatype {spec.datatype}, got {tensor.datatype}", spec.name
        )
    shape = tensor.data.shape
    if spec.shape is None:
        return
    fits = len(shape) == len(spec.shape) and all(
        wanted in (-1, size) for wanted, size in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise InvalidParameter(
            f"the input {spec.name!r} must have the shape {list(spec.shape)}, got {list(shape)}", spec.name
        )
