"""Comparison of a form with its original on the same items: figures, and limits on them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.errors import LimitExceeded, RequestFailed
from rayinfer.prediction_outputs import activated, finish_embedding
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.optimized.forms import Limits
from rayinfer.predictors.runner import Runner, RunnerItem, RunnerResult

FloatArray = npt.NDArray[np.float64]
ITEMS_AT_ONCE = 8
Progress = Callable[[int, int], None]  # with the number of items done, and of all


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The numbers of all items, and the seconds that one took: by the clock, and of the processor."""

    results: list[RunnerResult]
    seconds_per_item: float
    cpu_seconds_per_item: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Differences of a form from its original."""

    num_items: int
    max_difference: float
    agreement: float
    seconds_per_item: float
    original_seconds_per_item: float
    cpu_seconds_per_item: float  # of all threads, which hold beside other work, too
    original_cpu_seconds_per_item: float
    num_labelled: int = 0
    accuracy: float | None = None
    original_accuracy: float | None = None


def compute_in_turn(
    runners: Sequence[Runner], items: Sequence[RunnerItem], progress: Progress | None = None
) -> list[Outputs]:
    """Run the items through each runner, a few at a time in turn, so that all have the same machine.

    The first ones run twice, as whatever is allocated or compiled then is no part of a step.
    """
    results: list[list[RunnerResult]] = [[] for _ in runners]
    times: list[float] = [0.0 for _ in runners]
    cpu_times: list[float] = [0.0 for _ in runners]
    for runner in runners:
        runner.run(items[:ITEMS_AT_ONCE])
    for start in range(0, len(items), ITEMS_AT_ONCE):
        batch = items[start : start + ITEMS_AT_ONCE]
        for number, runner in enumerate(runners):
            started, cpu_started = time.perf_counter(), time.process_time()
            results[number] += runner.run(batch)
            times[number] += time.perf_counter() - started
            cpu_times[number] += time.process_time() - cpu_started
        if progress is not None:
            progress(min(len(items), start + ITEMS_AT_ONCE), len(items))
    return [
        Outputs(results=each, seconds_per_item=seconds / len(items), cpu_seconds_per_item=cpu_seconds / len(items))
        for each, seconds, cpu_seconds in zip(results, times, cpu_times, strict=True)
    ]


def compare(
    description: PredictorDescription, original: Outputs, form: Outputs, labels: Sequence[int] | None = None
) -> Figures:
    """Compare numbers as clients get them; raises RequestFailed for ones that are not finite."""
    expected, found = [], []
    for index, (one, other) in enumerate(zip(original.results, form.results, strict=True)):
        expected.append(_as_clients_get(description, one, f"item {index} of the original"))
        found.append(_as_clients_get(description, other, f"item {index} of the form"))
        if expected[-1].shape != found[-1].shape:
            raise RequestFailed(f"item {index} has the shape {found[-1].shape}, its original {expected[-1].shape}")
    scale = 1.0
    if description.tasks[0] == "infer" or (description.activation == "none" and description.labels):
        scale = max((float(np.abs(each).max(initial=0)) for each in expected), default=1.0) or 1.0
    accuracy = [None if labels is None else _accuracy(arrays, labels) for arrays in (expected, found)]
    return Figures(
        num_items=len(expected),
        max_difference=max(float(np.abs(a - b).max(initial=0)) for a, b in zip(expected, found, strict=True)) / scale,
        agreement=_agreement(description, expected, found),
        seconds_per_item=form.seconds_per_item,
        original_seconds_per_item=original.seconds_per_item,
        cpu_seconds_per_item=form.cpu_seconds_per_item,
        original_cpu_seconds_per_item=original.cpu_seconds_per_item,
        num_labelled=0 if labels is None else len(labels),
        original_accuracy=accuracy[0],
        accuracy=accuracy[1],
    )


def check_limits(figures: Figures, limits: Limits) -> None:
    """Raise LimitExceeded that names the first figure beyond its limit."""
    if not figures.max_difference <= limits.max_difference:
        raise _exceeded("largest difference (max_difference)", figures.max_difference, limits.max_difference)
    if not figures.agreement >= limits.min_agreement:
        raise _exceeded("agreement (min_agreement)", figures.agreement, limits.min_agreement)
    if figures.accuracy is None or figures.original_accuracy is None:
        return
    loss = figures.original_accuracy - figures.accuracy
    if not loss <= limits.max_accuracy_loss:
        raise _exceeded("loss of accuracy (max_accuracy_loss)", loss, limits.max_accuracy_loss)


def _exceeded(figure: str, value: float, limit: float) -> LimitExceeded:
    advice = "another form, more calibration data, or a limit of your own may help"
    return LimitExceeded(f"the {figure} is {value:.4g}, beyond the limit of {limit:.4g}; {advice}", value, limit)


def _as_clients_get(description: PredictorDescription, result: RunnerResult, place: str) -> FloatArray:
    """Return an item's numbers in one array, behind normalization or activation."""
    if isinstance(result, dict):
        arrays = [np.asarray(result[name], dtype=np.float64).ravel() for name in sorted(result)]
        numbers: npt.NDArray[Any] = np.concatenate(arrays)
    elif description.tasks[0] == "embed":
        numbers = finish_embedding(result[None], description)[0]
    else:
        numbers = activated(result, description.activation)
    raw = result.values() if isinstance(result, dict) else [result]
    if not all(np.isfinite(np.asarray(each, dtype=np.float64)).all() for each in (*raw, numbers)):
        raise RequestFailed(f"{place} has numbers that are not finite")
    return np.asarray(numbers, dtype=np.float64)


def _agreement(description: PredictorDescription, expected: list[FloatArray], found: list[FloatArray]) -> float:
    """Mean cosine of vectors, share of equal classes, or share of pairs of scores that keep their order."""
    if len(description.labels) > 1:
        same = [(a.argmax(-1) == b.argmax(-1)).ravel() for a, b in zip(expected, found, strict=True)]
        return float(np.concatenate(same).mean())
    if len(description.labels) == 1:
        before, after = (np.concatenate(each) for each in (expected, found))
        order = [np.sign(each[:, None] - each[None]) for each in (before, after)]
        first, second = np.triu_indices(len(before), 1)
        return float((order[0][first, second] == order[1][first, second]).mean()) if len(first) else 1.0
    return float(np.mean([_cosine(a, b) for a, b in zip(expected, found, strict=True)]))


def _cosine(a: FloatArray, b: FloatArray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else float(np.array_equal(a, b))


def _accuracy(outputs: list[FloatArray], labels: Sequence[int]) -> float:
    return float(np.mean([int(each.argmax()) == label for each, label in zip(outputs, labels, strict=True)]))
