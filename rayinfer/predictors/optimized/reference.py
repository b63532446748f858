"""Items and the original's numbers, kept beside a form so that it can be verified again without the original."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from rayinfer.errors import ModelLoadError
from rayinfer.predictions import PredictionTask
from rayinfer.predictors.runner import RunnerItem, RunnerResult

Array = npt.NDArray[Any]

REFERENCE_FILE = "reference.safetensors"
MAX_KEPT = 64


def save_reference(folder: Path, items: Sequence[RunnerItem], results: Sequence[RunnerResult]) -> None:
    """Write the first items and their numbers."""
    tensors: dict[str, Array] = {}
    for index, (item, result) in enumerate(zip(items[:MAX_KEPT], results, strict=False)):
        if item.pixels is not None:
            tensors[f"{index}.pixels"] = item.pixels
        elif item.token_ids:
            tensors[f"{index}.token_ids"] = np.array(item.token_ids, dtype=np.int64)
            tensors[f"{index}.num_first_tokens"] = np.array([item.num_first_tokens], dtype=np.int64)
        else:
            tensors |= {f"{index}.input.{name}": array for name, array in item.tensors.items()}
        named = result if isinstance(result, dict) else {"": result}
        tensors |= {f"{index}.output.{name}": array for name, array in named.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / REFERENCE_FILE)


def load_reference(folder: Path, task: PredictionTask) -> tuple[list[RunnerItem], list[RunnerResult]]:
    """Read what `save_reference` wrote; raises ModelLoadError."""
    file = folder / REFERENCE_FILE
    try:
        tensors = load_file(file)
        num_items = 1 + max(int(name.partition(".")[0]) for name in tensors)
        items = [_item(index, tensors, task) for index in range(num_items)]
        results = [_result(_under(f"{index}.output.", tensors)) for index in range(num_items)]
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise ModelLoadError(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return items, results


def _item(index: int, tensors: dict[str, Array], task: PredictionTask) -> RunnerItem:
    if (pixels := tensors.get(f"{index}.pixels")) is not None:
        return RunnerItem(task=task, pixels=pixels)
    if (token_ids := tensors.get(f"{index}.token_ids")) is not None:
        num_first_tokens = int(tensors[f"{index}.num_first_tokens"][0])
        return RunnerItem(task=task, token_ids=token_ids.tolist(), num_first_tokens=num_first_tokens)
    return RunnerItem(task=task, tensors=_under(f"{index}.input.", tensors))


def _under(prefix: str, tensors: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def _result(named: dict[str, Array]) -> RunnerResult:
    return named[""] if set(named) == {""} else named
