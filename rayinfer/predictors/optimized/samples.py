"""Inputs on which a form is calibrated and verified: files of the user's, or Python's documentation for texts."""

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from rayinfer.errors import ConfigError, RequestError, shown
from rayinfer.predictors.predictor_inputs import make_item
from rayinfer.predictors.registered import DATATYPES
from rayinfer.predictors.runner import Runner, RunnerItem
from rayinfer.predictors.runners.image_runner import ImageRunner
from rayinfer.predictors.runners.tensor_runner import TensorRunner
from rayinfer.tokenization.tokenizer import Tokenizer

NUM_TEXTS = 128
MAX_SAMPLES = 1024
LEAST_CALIBRATED, LEAST_SAMPLES = 8, 2
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
DOCUMENTATION = "Python's own documentation (pydoc_data.topics)"


@dataclass(frozen=True, slots=True)
class Samples:
    """Items for a runner; `labels` has the right class of each, where a file has it."""

    source: str
    items: list[RunnerItem]
    labels: list[int] | None = None


def read_samples(path: Path | None, runner: Runner, tokenizer: Tokenizer | None, *, labelled: bool = False) -> Samples:
    """Read a JSONL file, or a folder of images; without either, texts come from Python's documentation.

    A line has "text" and perhaps "text_pair", or "image", a path beside the file, or "inputs", numbers by name; of a
    `labelled` file also "label", the name or number of a class. Raises ConfigError that names the line.
    """
    if labelled and not runner.description.labels:
        raise ConfigError("a labelled file is for models with classes, and this one has none")
    if path is None:
        if tokenizer is None:
            kind = "images, as a folder or a" if runner.description.image_size else "inputs, as a"
            raise ConfigError(f"this model is verified on your {kind} JSONL file: give one with --calibration")
        lines: Iterator[tuple[str, Mapping[str, Any]]] = ((DOCUMENTATION, {"text": text}) for text in _documentation())
    else:
        lines = _image_files(path) if path.is_dir() else _json_lines(path)
    items: list[RunnerItem] = []
    labels: list[int] = []
    for place, line in lines:
        if len(items) == MAX_SAMPLES:
            break
        try:
            items.append(_item(line, runner, tokenizer, path))
            if labelled:
                labels.append(_label(line, runner.description.labels))
        except (RequestError, OSError, KeyError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{place}: {type(error).__name__}: {reason}") from None
    if len(items) < LEAST_SAMPLES:
        raise ConfigError(f"{path} must have {LEAST_SAMPLES} samples at least, got {len(items)}")
    return Samples(DOCUMENTATION if path is None else path.name, items, labels if labelled else None)


def split_for_calibration(samples: Samples) -> tuple[list[RunnerItem], Samples]:
    """Return every other sample to calibrate with, and the others to verify on; raises ConfigError for too few."""
    calibrated, verified = samples.items[::2], samples.items[1::2]
    if len(calibrated) < LEAST_CALIBRATED:
        raise ConfigError(
            f"{samples.source}: a static scale needs {2 * LEAST_CALIBRATED} samples at least, half of them to verify"
            f" it, got {len(samples.items)}"
        )
    return calibrated, Samples(samples.source, verified)


def _item(line: Mapping[str, Any], runner: Runner, tokenizer: Tokenizer | None, path: Path | None) -> RunnerItem:
    task = runner.description.tasks[0]
    if tokenizer is not None:
        value: Any = (line["text"], line["text_pair"]) if "text_pair" in line else line["text"]
    elif runner.description.image_size:
        assert path is not None, "there are no images without a file"
        value = (path if path.is_dir() else path.parent) / line["image"]
    else:
        value = _tensors(line["inputs"], runner)
    item = make_item(runner, tokenizer, task, value, "the sample", truncate=True)
    return runner.resize(item) if isinstance(runner, ImageRunner) else item


def _tensors(inputs: Mapping[str, Any], runner: Runner) -> dict[str, Any]:
    assert isinstance(runner, TensorRunner), "only registered models take tensors"
    types = {spec.name: DATATYPES[spec.datatype] for spec in runner.inputs}
    if unknown := sorted(set(inputs) - set(types)):
        raise ValueError(f"inputs {unknown} are not the model's: {', '.join(types)}")
    return {name: np.array(value, dtype=_numpy_type(types[name])) for name, value in inputs.items()}


def _numpy_type(dtype: Any) -> Any:
    return np.dtype(str(dtype).removeprefix("torch."))


def _label(line: Mapping[str, Any], labels: tuple[str, ...]) -> int:
    label = line["label"]
    if isinstance(label, str) and label in labels:
        return labels.index(label)
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(labels):
        return label
    raise ValueError(f"label {shown(label)} is not one of the model's {len(labels)} labels")


def _json_lines(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{file}, line {number}: not readable as JSON: {error}") from None
        if not isinstance(line, dict):
            raise ConfigError(f"{file}, line {number}: must be a JSON object, got {shown(line)}")
        yield f"{file}, line {number}", line


def _image_files(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in IMAGE_SUFFIXES:
            yield str(file), {"image": file.name}


def _documentation() -> list[str]:
    """Return sentences and paragraphs of mixed lengths, the same ones at every call."""
    paragraphs = [" ".join(text.split()) for name in sorted(topics) for text in re.split(r"\n\s*\n", topics[name])]
    paragraphs = [each for each in paragraphs if len(each) >= 20 and sum(map(str.isalpha, each)) > 0.6 * len(each)]
    sentences = [each for text in paragraphs for each in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text) if len(each) >= 20]
    generator = random.Random(0)
    return [generator.choice(sentences if index % 3 else paragraphs) for index in range(NUM_TEXTS)]
