"""Checks of a predictor's requests, and their items for the runner: whatever passes can be computed."""

from typing import Any

import numpy as np
import safetensors.numpy as safetensors

from rayinfer.engine.scheduling.request_checks import check_urgency, token_array
from rayinfer.errors import InvalidParameter, PromptTooLong, TaskNotServed, shown
from rayinfer.predictions import PredictionInput
from rayinfer.predictors.runner import NamedTensors, Runner, RunnerItem
from rayinfer.protocols import GenerationRequest


def checked_item(request: GenerationRequest, runner: Runner) -> RunnerItem:
    """Check a request and make its item, without the pixels of an encoded image; raises RequestError."""
    prediction, description = request.prediction, runner.description
    if prediction is None:
        raise InvalidParameter("this model does not generate text", "model")
    if prediction.task not in description.tasks:
        raise TaskNotServed(f"this model does {', '.join(description.tasks)}, not {prediction.task}")
    check_urgency(request.priority, request.timeout_s)
    if bool(request.prompt_token_ids) + bool(prediction.image) + bool(prediction.tensors) != 1:
        raise InvalidParameter("an item needs a text, an image or tensors, and one of them alone", "input")
    if prediction.image and not description.image_size:
        raise InvalidParameter("this model takes no images", "input")
    tensors = _read_tensors(prediction.tensors) if prediction.tensors else {}
    pixels = None
    if tensors and description.image_size:
        pixels, tensors = _pixels(tensors), {}
    if request.prompt_token_ids:
        _check_text(request, prediction, runner)
    return RunnerItem(
        task=prediction.task,
        token_ids=request.prompt_token_ids,
        num_first_tokens=prediction.num_first_tokens,
        pixels=pixels,
        is_resized=pixels is None or pixels.dtype != np.uint8,
        tensors=tensors,
    )


def _check_text(request: GenerationRequest, prediction: PredictionInput, runner: Runner) -> None:
    num_tokens, limit = len(request.prompt_token_ids), runner.max_input_tokens
    if not limit:
        raise InvalidParameter("this model takes no texts", "input")
    if num_tokens > limit:
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens. However, your input has {num_tokens} tokens.",
            "input",
            "context_length_exceeded",
        )
    token_array(request.prompt_token_ids, runner.vocab_size)
    if not 0 <= prediction.num_first_tokens <= num_tokens:
        raise InvalidParameter(f"num_first_tokens must be 0 to {num_tokens}, got {prediction.num_first_tokens}")


def _pixels(tensors: NamedTensors) -> np.ndarray[Any, Any]:
    """Return an image that came as a tensor: bytes of any size, or numbers that are the model's input."""
    pixels = tensors.get("pixels")
    if len(tensors) != 1 or pixels is None:
        raise InvalidParameter(f"an image's only tensor is 'pixels', got {shown(sorted(tensors))}", "input")
    is_bytes = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
    if not pixels.size or not (is_bytes or (pixels.dtype == np.float32 and pixels.ndim == 3 and len(pixels) == 3)):
        raise InvalidParameter(
            f"'pixels' must be uint8 [height, width, 3] or float32 [3, height, width], got {pixels.dtype}"
            f" {list(pixels.shape)}",
            "input",
        )
    return pixels


def _read_tensors(content: bytes) -> NamedTensors:
    try:
        tensors: dict[str, np.ndarray] = safetensors.load(content)
    except Exception as error:  # it raises errors of several kinds for broken files
        raise InvalidParameter(f"tensors cannot be read: {error}", "input") from None
    return tensors
