"""Inputs of `Predictor`: texts, pairs, images and tensors, checked and tokenized."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.errors import BadImage, InvalidParameter, NotSupported, PromptTooLong, shown
from rayinfer.images.shapes import ImageShape
from rayinfer.predictions import PredictionTask
from rayinfer.predictors.runner import Runner, RunnerItem
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation

MOST_GROUPED_TEXTS, MOST_GROUPED_CHARS = 64, 65_536  # that are tokenized together


def as_inputs(inputs: Any) -> list[Any]:
    """Make a list of several inputs; raises InvalidParameter for an empty one, and for what is no list."""
    if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Sequence | np.ndarray):
        raise InvalidParameter(f"inputs must be a list, got {shown(inputs)}", "inputs")
    if len(inputs) == 0:
        raise InvalidParameter("inputs must not be empty", "inputs")
    return list(inputs)


def as_pairs(query: Any, documents: Any) -> list[tuple[str, str]]:
    """Make pairs of a query and documents, of two lists of one length, or of a list of pairs."""
    if documents is None:
        pairs = as_inputs(query)
        for index, pair in enumerate(pairs):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InvalidParameter(f"input {index} must be a pair of texts, got {shown(pair)}", "inputs")
        return [(pair[0], pair[1]) for pair in pairs]
    listed = as_inputs(documents)
    queries = [query] * len(listed) if isinstance(query, str) else as_inputs(query)
    if not all(isinstance(each, str) for each in queries):
        raise InvalidParameter("documents must not be given beside a list of pairs", "documents")
    if len(queries) != len(listed):
        raise InvalidParameter(
            f"documents must be as many as the queries, {len(queries)}, got {len(listed)}", "documents"
        )
    return list(zip(queries, listed, strict=True))


def make_text_items(
    runner: Runner, tokenizer: Tokenizer, task: PredictionTask, values: Sequence[Any], *, truncate: bool
) -> list[RunnerItem]:
    """Make an item of each text or pair of texts; neighbors are tokenized together, by all cores.

    Groups are small, so that memory stays bounded and Ctrl-C is raised soon.
    """
    items: list[RunnerItem] = []
    while len(items) < len(values):
        group = _next_texts(values, len(items))
        encoded: Sequence[list[int] | None] = [None]  # a pair, or what is no text
        if group:
            try:
                encoded = tokenizer.encode_texts(group, truncation=_truncation(runner, truncate=truncate))
            except InvalidParameter:
                encoded = [None] * len(group)  # one by one, so that the first wrong text is named
        for token_ids in encoded:
            place = f"input {len(items)}"
            items.append(
                _text_item(runner, tokenizer, task, values[len(items)], place, truncate=truncate, token_ids=token_ids)
            )
    return items


def _next_texts(values: Sequence[Any], first: int) -> list[str]:
    """Return the texts from the first on that are tokenized together; none where it is no text, or empty."""
    texts: list[str] = []
    num_chars = 0
    for value in values[first : first + MOST_GROUPED_TEXTS]:
        if not isinstance(value, str) or not value or (texts and num_chars + len(value) > MOST_GROUPED_CHARS):
            break
        texts.append(value)
        num_chars += len(value)
    return texts


def make_item(
    runner: Runner,
    tokenizer: Tokenizer | None,
    task: PredictionTask,
    value: Any,
    place: str,
    *,
    shape: ImageShape | None = None,
    truncate: bool,
) -> RunnerItem:
    """Make an item of a text, a pair of texts, an image or named tensors, whatever the model takes.

    With a shape, encoded images are decoded to it, as engines do; others get it by the runner.
    """
    if tokenizer is not None:
        return _text_item(runner, tokenizer, task, value, place, truncate=truncate)
    if runner.description.image_size:
        pixels, is_resized = _image(value, place, shape)
        return RunnerItem(task=task, pixels=pixels, is_resized=is_resized, name=place)
    if not isinstance(value, Mapping):
        raise InvalidParameter(f"{place} must be tensors by name, got {shown(value)}", "inputs")
    tensors = {str(name): np.asarray(tensor) for name, tensor in value.items()}
    return RunnerItem(task=task, tensors=tensors, name=place)


def _truncation(runner: Runner, *, truncate: bool) -> Truncation | None:
    return Truncation(runner.max_input_tokens, "right") if truncate else None


def _text_item(
    runner: Runner,
    tokenizer: Tokenizer,
    task: PredictionTask,
    value: Any,
    place: str,
    *,
    truncate: bool,
    token_ids: list[int] | None = None,
) -> RunnerItem:
    """Check an input and tokenize it, unless its `token_ids` are there."""
    truncation = _truncation(runner, truncate=truncate)
    max_tokens, num_first_tokens = runner.max_input_tokens, 0
    if isinstance(value, str | tuple | list) and not any(value):
        raise InvalidParameter(f"{place} must not be empty", "inputs")
    if isinstance(value, str):
        token_ids = tokenizer.encode(value, truncation=truncation) if token_ids is None else token_ids
    elif isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value):
        token_ids, num_first_tokens = tokenizer.encode_pair(value[0], value[1], truncation=truncation)
    else:
        raise InvalidParameter(f"{place} must be a text or a pair of texts, got {shown(value)}", "inputs")
    if len(token_ids) > max_tokens:
        raise PromptTooLong(
            f"{place} has {len(token_ids)} tokens, more than the model's {max_tokens}: set truncate=True to cut it",
            "inputs",
        )
    if not token_ids:
        raise InvalidParameter(f"{place} has no tokens", "inputs")
    return RunnerItem(task=task, token_ids=token_ids, num_first_tokens=num_first_tokens, name=place)


def _image(value: Any, place: str, shape: ImageShape | None) -> tuple[npt.NDArray[Any], bool]:
    """Return pixels and whether they have the model's size.

    Accepted are a file's path or bytes, arrays, and images of Pillow.
    """
    if isinstance(value, str | Path):
        value = _file(Path(value), place)
    if isinstance(value, bytes | bytearray | memoryview):
        return _decoded(bytes(value), place, shape), shape is not None
    is_of_pillow = hasattr(value, "mode") and hasattr(value, "convert")
    pixels = np.asarray(value.convert("RGB") if is_of_pillow else value)
    if pixels.dtype not in (np.uint8, np.float32):
        raise InvalidParameter(
            f"{place} must be a path, the bytes of a JPEG, PNG or WebP file, an image of Pillow, an array of uint8"
            f" [height, width, 3], or one of float32 [3, height, width] that is normalized, got {shown(value)}",
            "inputs",
        )
    return pixels, False


def _file(path: Path, place: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null
        raise InvalidParameter(f"{place}: the image {shown(str(path))} cannot be read: {error}", "inputs") from None


def _decoded(content: bytes, place: str, shape: ImageShape | None) -> npt.NDArray[np.uint8]:
    # By name: models that take no images need no decoder.
    worker = importlib.import_module("rayinfer.images.worker")
    try:
        return np.asarray(worker.decode_image(content, shape))
    except worker.RefusedImage as error:
        raise BadImage(f"{place}: {error}", "inputs") from None


def cut_into_batches(items: Sequence[RunnerItem], max_tokens: int) -> list[list[int]]:
    """Cut items, by their numbers, into batches of so many tokens; a longer one runs alone.

    They go by length, so that equal ones meet; tensors count as all tokens.
    """
    costs = [len(item.token_ids) or max_tokens for item in items]
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(items)), key=lambda index: -costs[index]):
        if not batches or costs[index] > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(index)
        room -= costs[index]
    return batches


def check_task(runner: Runner, name: str, *tasks: PredictionTask) -> PredictionTask:
    """Return the first of these tasks that the model does; raises NotSupported."""
    for task in tasks:
        if task in runner.description.tasks:
            return task
    does = ", ".join(runner.description.tasks)
    raise NotSupported(f"{name} is not for this model, which does {does}")
