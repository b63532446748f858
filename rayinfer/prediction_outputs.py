"""Readings of a predictor's numbers: embeddings, labels with scores and relevance (no torch here)."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.predictions import Activation, PredictionOutput, PredictorDescription

FloatArray = npt.NDArray[np.float32]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]

LEAST_NORM = 1e-12  # a vector of zeros stays as it is


class LabelScore(NamedTuple):
    """A label, and how probable it is after the activation."""

    label: str
    score: float


def prediction_output(numbers: npt.NDArray[Any]) -> PredictionOutput:
    """Make the output of a model's numbers, as they travel."""
    return PredictionOutput(shape=numbers.shape, data=np.ascontiguousarray(numbers, dtype="<f4").tobytes())


def output_numbers(output: PredictionOutput) -> FloatArray:
    """Return a model's numbers, read-only; raises RequestFailed where it has computed none."""
    if output.error:
        raise RequestFailed(output.error)
    return np.frombuffer(output.data, dtype="<f4").reshape(output.shape).astype(np.float32, copy=False)


def embedding(
    output: PredictionOutput,
    description: PredictorDescription,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> FloatArray:
    """Return an embedding, or one for each token: cut to its first `dimensions`, then normalized.

    `normalize` is the model's own way by default. Raises InvalidParameter for dimensions that the model does not have.
    """
    return finish_embedding(output_numbers(output), description, dimensions, normalize)


def finish_embedding(
    numbers: FloatArray,
    description: PredictorDescription,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> FloatArray:
    """Cut vectors, which lie along the last axis, and normalize them; see `embedding`."""
    check_dimensions(description, dimensions)
    vectors = numbers[..., :dimensions]
    if not (description.normalizes if normalize is None else normalize):
        return vectors
    norms = np.sqrt((vectors * vectors).sum(-1, keepdims=True, dtype=np.float32))
    return np.asarray(vectors / np.maximum(norms, np.float32(LEAST_NORM)), dtype=np.float32)


def check_dimensions(description: PredictorDescription, dimensions: int | None) -> None:
    """Raise InvalidParameter unless the model's embeddings may be cut to so many dimensions."""
    size = description.embedding_size
    if dimensions is None or dimensions == size:
        return
    is_whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if not is_whole or not 1 <= dimensions <= size:
        raise InvalidParameter(f"dimensions must be a whole number from 1 to {size}, got {dimensions!r}", "dimensions")
    if description.dimensions and dimensions not in description.dimensions:
        known = ", ".join(map(str, sorted({*description.dimensions, size})))
        raise InvalidParameter(f"dimensions must be one of {known}, got {dimensions}", "dimensions")


def activated(numbers: FloatArray, activation: Activation) -> FloatArray:
    """Turn a model's numbers into probabilities along the last axis."""
    if activation == "softmax":
        powers = np.exp(numbers - numbers.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True), dtype=np.float32)
    if activation == "sigmoid":
        shrunk = np.exp(-np.abs(numbers))  # at most 1, so that nothing overflows
        return np.where(numbers >= 0, 1 / (1 + shrunk), shrunk / (1 + shrunk)).astype(np.float32)
    return numbers


def label_scores(
    output: PredictionOutput,
    description: PredictorDescription,
    activation: Activation | None = None,
    top_k: int | None = None,
) -> list[LabelScore]:
    """Return the labels of an item with their scores, best first; `top_k` None: all, as is more than there are."""
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise InvalidParameter(f"top_k must be a whole number above 0, got {top_k!r}", "top_k")
    scores = activated(output_numbers(output), activation or description.activation)
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [LabelScore(description.labels[index], float(scores[index])) for index in best]


def token_label_scores(
    output: PredictionOutput, description: PredictorDescription, activation: Activation | None = None
) -> list[LabelScore]:
    """Return each token's best label, as transformers' pipelines choose it."""
    scores = activated(output_numbers(output), activation or "softmax")
    return [
        LabelScore(description.labels[best], float(row[best]))
        for row, best in zip(scores, scores.argmax(-1), strict=True)
    ]


def relevance(output: PredictionOutput, description: PredictorDescription, raw: bool = False) -> float:
    """Return the relevance of a pair of texts: the model's one number, behind its activation unless `raw`."""
    numbers = output_numbers(output)
    return float((numbers if raw else activated(numbers, description.activation))[0])


def similarity(one: FloatArray, other: FloatArray, kind: Similarity = "cosine") -> float:
    """Return how near two embeddings are; the nearer the larger, so distances are negative."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    if kind == "euclidean":
        return -float(np.linalg.norm(one - other))
    if kind == "manhattan":
        return -float(np.abs(one - other).sum())
    product = float(one @ other)
    if kind == "dot":
        return product
    cosine = product / max(float(np.linalg.norm(one) * np.linalg.norm(other)), LEAST_NORM)
    return min(max(cosine, -1.0), 1.0)  # rounding goes beyond


def are_finite(numbers: Sequence[FloatArray]) -> list[bool]:
    """Return for each item whether all of its numbers are finite."""
    return [bool(np.isfinite(array).all()) for array in numbers]
