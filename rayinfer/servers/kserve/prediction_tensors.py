"""Predictions as tensors: what goes into a predictor and what comes out of it, by its task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy

from rayinfer.errors import InvalidParameter, NotReady, RequestFailed, TaskNotServed
from rayinfer.prediction_outputs import activated, check_dimensions, embedding, output_numbers, relevance
from rayinfer.prediction_specs import IMAGE, PIXELS, TEXT, TEXT_PAIRS, prediction_specs, tensor_task
from rayinfer.predictions import PredictionInput, PredictionOutput, PredictionTask, PredictorDescription
from rayinfer.protocols import Tensor, TensorSpec
from rayinfer.servers.kserve.infer_request import InferRequest, RequestedOutput
from rayinfer.servers.kserve.prompt_images import encoded_image
from rayinfer.servers.kserve.tensors.classification import classify
from rayinfer.servers.kserve.tensors.datatypes import DATATYPES
from rayinfer.servers.kserve.tensors.tensor_json import bytes_array
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.pooling.schemas import PoolingBody
from rayinfer.servers.prediction.image_items import image_items
from rayinfer.servers.prediction.service import PredictionItem, PreparedPrediction
from rayinfer.servers.prediction.text_items import named_prompt, pair_items, text_items
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel

SETTINGS = frozenset(
    ("truncate_prompt_tokens", "truncation_side", "dimensions", "normalize", "prompt_name", "cache_salt")
) | {"use_activation"}
_BYTES_OF_TOKEN = 3072  # of tensors: as a patch of 16 by 16 pixels in float32
_DATATYPE_OF = {datatype.numpy: name for name, datatype in DATATYPES.items() if name not in ("BF16", "BYTES")}


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionInference:
    """A checked inference on a predictor."""

    request: InferRequest
    prepared: PreparedPrediction
    task: PredictionTask
    body: PoolingBody  # the settings
    input_ns: int = 0


def predictor_description(model: ServedModel) -> PredictorDescription | None:
    """Return the description of a model that does not generate; None for others, and while no engine has reported."""
    try:
        return model.generator.describe().predictor
    except NotReady:
        return None


def read_prediction(
    model: ServedModel, description: PredictorDescription, limits: RequestLimits, request: InferRequest, input_ns: int
) -> PredictionInference:
    """Check an inference request to a predictor, and tokenize its texts; raises RequestError."""
    task = tensor_task(description)
    if task is None:
        raise TaskNotServed(f"The model {model.name!r} does {', '.join(description.tasks)}: use /pooling.", "model")
    settings = dict(request.settings.model)
    if unknown := sorted(settings.keys() - SETTINGS):
        raise InvalidParameter(f"{unknown[0]:.80} is not supported.", unknown[0], "unsupported_parameter")
    body = check_schema(PoolingBody, {"input": "", **settings})
    body.check_ranges()
    check_dimensions(description, body.dimensions)
    known = [spec.name for spec in prediction_specs(description).outputs]
    for output in request.outputs or ():
        if task != "infer" and output.name not in known:
            raise InvalidParameter(
                f"the model {model.name!r} has no output {output.name!r:.80}; it has {', '.join(known)}", "outputs"
            )
    prepared = PreparedPrediction(
        model=model,
        description=description,
        items=_items(model, description, task, limits, request.inputs, body),
        priority=request.settings.priority,
        timeout_s=request.settings.timeout_s,
        cache_salt=body.cache_salt or "",
        operation="embeddings" if task == "embed" else task,
    )
    return PredictionInference(request=request, prepared=prepared, task=task, body=body, input_ns=input_ns)


def prediction_tensors(inference: PredictionInference, outputs: Sequence[PredictionOutput]) -> list[Tensor]:
    """Make the tensors that were asked for of a prediction's outputs; raises InvalidParameter."""
    description, body = inference.prepared.description, inference.body
    tensors: list[Tensor]
    match inference.task:
        case "embed":
            vectors = [embedding(each, description, body.dimensions, body.normalize) for each in outputs]
            tensors = [Tensor("embedding", "FP32", np.stack(vectors))]
        case "score":
            scores = [relevance(each, description, body.use_activation is False) for each in outputs]
            tensors = [Tensor("score", "FP32", np.array(scores, np.float32))]
        case "classify":
            activation = "none" if body.use_activation is False else description.activation
            numbers = np.stack([activated(output_numbers(each), activation) for each in outputs])
            labels = [description.labels[index].encode() for index in numbers.argmax(-1)]
            tensors = [
                Tensor("probabilities", "FP32", numbers),
                Tensor("label", "BYTES", bytes_array(labels, (len(labels),))),
                Tensor("score", "FP32", numbers.max(-1)),
            ]
        case _:
            tensors = _named_tensors(outputs[0])
    if inference.request.outputs is None:
        return tensors
    by_name = {tensor.name: tensor for tensor in tensors}
    return [_chosen(by_name, each, description.labels) for each in inference.request.outputs]


def _chosen(by_name: Mapping[str, Tensor], asked: RequestedOutput, labels: Sequence[str]) -> Tensor:
    if asked.name not in by_name:
        raise InvalidParameter(f"the model has no output {asked.name!r:.80}; it has {', '.join(by_name)}", "outputs")
    tensor = by_name[asked.name]
    if not asked.num_classes:
        return tensor
    return classify(tensor, asked.num_classes, labels if asked.name == "probabilities" else (), is_batch=True)


def _items(
    model: ServedModel,
    description: PredictorDescription,
    task: PredictionTask,
    limits: RequestLimits,
    inputs: Mapping[str, Tensor],
    body: PoolingBody,
) -> list[PredictionItem]:
    if task == "infer":
        return [_tensor_item(inputs, task)]
    if len(inputs) != 1:
        raise InvalidParameter(f"the model {model.name!r} takes one input, got {len(inputs)}", "inputs")
    ((name, tensor),) = inputs.items()
    if task == "score":
        texts = _texts(tensor, TEXT_PAIRS, model)
        if tensor.data.ndim != 2 or tensor.data.shape[1] != 2:
            raise InvalidParameter("the input 'text_pairs' must have the shape [-1, 2]", name)
        limits.check_num_inputs(len(texts) // 2, name)
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        return pair_items(pairs, model, task, name, body.text_settings())
    if not description.image_size:
        texts = _texts(tensor, TEXT, model)
        limits.check_num_inputs(len(texts), name)
        if not all(texts):
            raise InvalidParameter("the input 'text' must not hold an empty text", name)
        prompt = named_prompt(description, body.prompt_name) if task == "embed" else ""
        return text_items(texts, model, task, name, body.text_settings(prompt))
    if name == PIXELS.name:
        return _pixel_items(tensor, task, description, limits)
    _check_spec(tensor, IMAGE, model)
    images = [encoded_image(bytes(each), f"{name}.{index}") for index, each in enumerate(tensor.data.flat)]
    return image_items(images, description, limits, name)


def _texts(tensor: Tensor, spec: TensorSpec, model: ServedModel) -> list[str]:
    _check_spec(tensor, spec, model)
    try:
        return [bytes(element).decode() for element in tensor.data.flat]
    except UnicodeDecodeError:
        raise InvalidParameter(f"the input {spec.name!r} must be UTF-8", spec.name) from None


def _check_spec(tensor: Tensor, spec: TensorSpec, model: ServedModel) -> None:
    """Check an input, which may have another dimension of one; raises InvalidParameter."""
    if tensor.name != spec.name:
        raise InvalidParameter(
            f"the model {model.name!r} has no input {tensor.name!r:.80}; it has {spec.name}", "inputs"
        )
    if tensor.datatype != spec.datatype:
        raise InvalidParameter(f"the input {spec.name!r} must have the datatype {spec.datatype}", spec.name)
    shape = tensor.data.shape
    if len(shape) not in (1, 2) or (spec is not TEXT_PAIRS and len(shape) == 2 and shape[1] != 1):
        raise InvalidParameter(f"the input {spec.name!r} must have the shape {list(spec.shape or ())}", spec.name)


def _pixel_items(
    tensor: Tensor, task: PredictionTask, description: PredictorDescription, limits: RequestLimits
) -> list[PredictionItem]:
    images = tensor.data if tensor.data.ndim == 4 else tensor.data[np.newaxis]  # one image may come without its batch
    shape = images.shape
    is_bytes = tensor.datatype == "UINT8" and shape[-1] == 3
    if len(shape) != 4 or not all(shape) or not (is_bytes or (tensor.datatype == "FP32" and shape[1] == 3)):
        raise InvalidParameter(
            "the input 'pixels' must be UINT8 of the shape [-1, height, width, 3], or FP32 [-1, 3, height, width] that"
            f" is normalized, got {tensor.datatype} {list(tensor.data.shape)}",
            PIXELS.name,
        )
    if shape[0] > limits.max_images:
        raise InvalidParameter(f"a request may have {limits.max_images} images, got {shape[0]}", PIXELS.name)
    height, width = shape[1:3] if is_bytes else shape[2:]
    if max(height, width) > limits.max_image_side or images[0].nbytes > limits.max_image_bytes:
        raise InvalidParameter(
            f"an image may have {limits.max_image_side} pixels a side and {limits.max_image_bytes} bytes in all,"
            f" got {height} x {width} in {images[0].nbytes} bytes",
            PIXELS.name,
        )
    cost = description.image_cost
    return [
        PredictionItem([], PredictionInput(task=task, tensors=_saved({PIXELS.name: image}), cost=cost))
        for image in images
    ]


def _tensor_item(inputs: Mapping[str, Tensor], task: PredictionTask) -> PredictionItem:
    for name, tensor in inputs.items():
        if tensor.datatype in ("BYTES", "BF16"):
            raise InvalidParameter(f"the input {name!r}: tensors of {tensor.datatype} are not supported", name)
    content = _saved({name: tensor.data for name, tensor in inputs.items()})
    cost = max(1, len(content) // _BYTES_OF_TOKEN)
    return PredictionItem([], PredictionInput(task=task, tensors=content, cost=cost))


def _saved(tensors: Mapping[str, "np.ndarray[Any, Any]"]) -> bytes:
    content: bytes = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    return content


def _named_tensors(output: PredictionOutput) -> list[Tensor]:
    tensors = []
    for name, array in safetensors.numpy.load(output.data).items():
        if (datatype := _DATATYPE_OF.get(array.dtype.str)) is None:
            raise RequestFailed(f"the model returned {name!r} as {array.dtype}, which the protocol does not have")
        tensors.append(Tensor(name, datatype, array))
    return tensors
