"""Tensors that a predictor takes and returns, by its task, as protocols and `Predictor` name them (no torch here)."""

from collections.abc import Sequence
from typing import NamedTuple

from rayinfer.predictions import PredictionTask, PredictorDescription, TensorSpec

TENSOR_TASKS: tuple[PredictionTask, ...] = ("embed", "classify", "score", "infer")
TEXT = TensorSpec(name="text", datatype="BYTES", shape=(-1,))
TEXT_PAIRS = TensorSpec(name="text_pairs", datatype="BYTES", shape=(-1, 2))
IMAGE = TensorSpec(name="image", datatype="BYTES", shape=(-1,))  # encoded
# In place of IMAGE: images of one size, red, green and blue; as FP32 [-1, 3, height, width] they are the model's input.
PIXELS = TensorSpec(name="pixels", datatype="UINT8", shape=(-1, -1, -1, 3))


class PredictionSpecs(NamedTuple):
    """Inputs and outputs of a predictor; a first dimension of -1 is that of the batch."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]


def tensor_task(description: PredictorDescription) -> PredictionTask | None:
    """Return the task that a predictor's tensors are for; None where it has none of them."""
    return next((task for task in TENSOR_TASKS if task in description.tasks), None)


def prediction_specs(description: PredictorDescription) -> PredictionSpecs:
    """Return the inputs and outputs of a predictor; those of models of tensors are their own."""
    num_labels = len(description.labels)
    match tensor_task(description):
        case "embed":
            vector = TensorSpec(name="embedding", datatype="FP32", shape=(-1, description.embedding_size))
            return PredictionSpecs((TEXT,), (vector,))
        case "score":
            return PredictionSpecs((TEXT_PAIRS,), (TensorSpec(name="score", datatype="FP32", shape=(-1,)),))
        case "classify":
            outputs = (
                TensorSpec(name="probabilities", datatype="FP32", shape=(-1, num_labels)),
                TensorSpec(name="label", datatype="BYTES", shape=(-1,)),
                TensorSpec(name="score", datatype="FP32", shape=(-1,)),
            )
            return PredictionSpecs((IMAGE if description.image_size else TEXT,), outputs)
        case "infer":
            return PredictionSpecs(description.inputs, description.outputs)
    return PredictionSpecs((), ())
