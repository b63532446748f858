"""KServe's older protocol, v1: instances in, predictions out."""

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rayinfer.errors import InvalidParameter, NotSupported, TaskNotServed
from rayinfer.images.inputs import decode_image_text
from rayinfer.prediction_specs import IMAGE, TEXT_PAIRS, prediction_specs
from rayinfer.predictions import PredictorDescription
from rayinfer.protocols import Tensor, TensorSpec
from rayinfer.servers.kserve.infer_request import (
    InferRequest,
    InferResult,
    check_parameters,
    infer_settings,
)
from rayinfer.servers.kserve.inference import Inference, InferenceService, TextInference
from rayinfer.servers.kserve.prediction_tensors import predictor_description
from rayinfer.servers.kserve.repository import AnyModel
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES
from rayinfer.servers.kserve.tensors.tensor_json import MAX_JSON_ELEMENTS, bytes_array, decode_json_data
from rayinfer.servers.kserve.tensors.tensor_shapes import MAX_DIMENSIONS
from rayinfer.servers.kserve.text_request import text_request
from rayinfer.servers.served_model import ServedModel

_TEXT_NAMES = ("text_input", "prompt")


def read_predict_body(service: InferenceService, model: AnyModel, body: Mapping[str, Any]) -> Inference:
    """Check a body; raises RequestError.

    An instance is a text of a language model, the value of a model's only input, or an object of all its inputs.
    """
    started_ns = time.monotonic_ns()
    instances = body.get("instances")
    if not isinstance(instances, list) or not instances:
        raise InvalidParameter("instances must be a list of at least one", "instances")
    settings = infer_settings(check_parameters(body.get("parameters"), "parameters", allows_lists=True))
    if isinstance(model, ServedModel) and (description := predictor_description(model)) is not None:
        inputs = _prediction_inputs(description, instances)
        return service.check(model, InferRequest(inputs=inputs, settings=settings), started_ns)
    if isinstance(model, ServedModel):
        limits = service.generation.limits
        if len(instances) > limits.max_prompts:
            raise InvalidParameter(f"instances must be at most {limits.max_prompts}, got {len(instances)}", "instances")
        texts = [_text(instance, index) for index, instance in enumerate(instances)]
        request = text_request(model, limits, texts, settings, "")
        input_ns = time.monotonic_ns() - started_ns
        return TextInference(request=request, shape=(len(texts),), input_ns=input_ns)
    inputs = {spec.name: _stack(spec, _columns(model.inputs, spec, instances)) for spec in model.inputs}
    return service.check(model, InferRequest(inputs=inputs, settings=settings), started_ns)


def predictions(result: InferResult) -> list[Any]:
    """Return one prediction for each instance: a value, or an object of all outputs where there are several."""
    if len({tensor.data.shape[:1] for tensor in result.outputs}) > 1 or not result.outputs[0].data.ndim:
        raise NotSupported("The outputs have no row for each instance: use /v2/models/NAME/infer.", "instances")
    columns = {tensor.name: _values(tensor) for tensor in result.outputs}
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _prediction_inputs(description: PredictorDescription, instances: Sequence[Any]) -> dict[str, Tensor]:
    """Make the inputs of a predictor: texts, pairs or images, each alone or in an object of its kind, or tensors."""
    specs = prediction_specs(description).inputs
    if specs and "infer" in description.tasks:
        return {spec.name: _stack(spec, _columns(specs, spec, instances)) for spec in specs}
    if not specs:
        raise TaskNotServed("This model takes no instances: use /v2/models/NAME/infer or /pooling.", "model")
    spec = specs[0]
    elements: list[bytes] = []
    for index, instance in enumerate(instances):
        param = f"instances.{index}"
        if spec is IMAGE:
            image = instance.get("image", instance) if isinstance(instance, dict) else instance
            elements.append(decode_image_text(image.get("b64") if isinstance(image, dict) else image, param))
            continue
        texts: list[Any]
        if isinstance(instance, dict):
            texts = [instance.get(name) for name in ("text", "text_pair") if name in instance]
        else:
            texts = instance if isinstance(instance, list) else [instance]
        if len(texts) != (2 if spec is TEXT_PAIRS else 1) or any(not isinstance(text, str) for text in texts):
            kind = "two texts, or an object with text and text_pair" if spec is TEXT_PAIRS else "a text"
            raise InvalidParameter(f"{param} must be {kind}", param)
        elements += [text.encode() for text in texts]
    shape = (len(instances), 2) if spec is TEXT_PAIRS else (len(instances),)
    return {spec.name: Tensor(spec.name, "BYTES", bytes_array(elements, shape))}


def _text(instance: Any, index: int) -> str:
    if isinstance(instance, dict) and len(instance) == 1:
        instance = next((instance[name] for name in _TEXT_NAMES if name in instance), None)
    if not isinstance(instance, str):
        raise InvalidParameter(
            f"instances.{index} must be a string, or an object with text_input alone", f"instances.{index}"
        )
    return instance


def _columns(specs: Sequence[TensorSpec], spec: TensorSpec, instances: Sequence[Any]) -> list[Any]:
    """Return an input's value of every instance."""
    names = {each.name for each in specs}
    if len(names) == 1 and not any(isinstance(instance, dict) for instance in instances):
        return list(instances)
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or instance.keys() != names:
            raise InvalidParameter(
                f"instances.{index} must be an object with {', '.join(sorted(names))}", f"instances.{index}"
            )
    return [instance[spec.name] for instance in instances]


def _stack(spec: TensorSpec, values: list[Any]) -> Tensor:
    """Make one tensor of the values; where any datatype will do, the values decide."""
    shape, flat = _flatten(values)
    datatype = DATATYPES[spec.datatype or _datatype_of(flat)]
    return Tensor(spec.name, datatype.name, decode_json_data(flat, datatype, shape, "instances"))


def _flatten(values: list[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of nested lists and their elements; raises InvalidParameter where they have no shape."""
    shape = [len(values)]
    while values and isinstance(values[0], list):
        sizes = {len(value) if isinstance(value, list) else None for value in values}
        if len(sizes) > 1 or len(shape) == MAX_DIMENSIONS:
            raise InvalidParameter("instances must have one shape", "instances")
        shape.append(len(values[0]))
        values = list(chain.from_iterable(values))
    return tuple(shape), values


def _datatype_of(flat: list[Any]) -> str:
    if flat and isinstance(flat[0], bool):
        return "BOOL"
    if flat and isinstance(flat[0], str):
        return "BYTES"
    return "FP64" if any(isinstance(value, float) for value in flat) else "INT64"


def _values(tensor: Tensor) -> list[Any]:
    if tensor.data.size > MAX_JSON_ELEMENTS:
        raise InvalidParameter(f"the output {tensor.name!r} has more than {MAX_JSON_ELEMENTS} elements", "instances")
    if tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
        raise InvalidParameter(
            f"the output {tensor.name!r} holds infinities or NaN, which JSON does not have", "instances"
        )
    if tensor.datatype == "BYTES":
        texts = np.empty(tensor.data.shape, dtype=object)
        texts.reshape(-1)[:] = [bytes(element).decode(errors="replace") for element in tensor.data.flat]
        return list(texts.tolist())
    return list(tensor.data.tolist())
