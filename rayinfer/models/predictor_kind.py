"""Kind of predictor that a model folder holds (no torch here)."""

from pathlib import Path
from typing import Literal

from rayinfer.models.architectures.registry import ARCHITECTURES, HEADLESS
from rayinfer.models.checkpoints.model_folder import TENSOR_SCHEMA, registered_name
from rayinfer.models.config_fields import read_json
from rayinfer.models.encoders.registry import encoder_architecture

SENTENCE_MODULES = "modules.json"  # of sentence-transformers
IMAGE_CLASSIFIER = "ForImageClassification"  # how such architectures' names end

PredictorKind = Literal["encoder", "decoder", "image", "tensors"]


def predictor_kind(folder: Path) -> PredictorKind | None:
    """Return which kind of predictor a folder holds; None for a model that generates, or that is not known.

    A decoder is one that is embedded with: it lies in the layout of sentence-transformers, or has no output head.
    """
    if (folder / TENSOR_SCHEMA).is_file() or registered_name(folder) is not None:
        return "tensors"
    architectures = read_json(folder / "config.json").get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if encoder_architecture(name) is not None:
        return "encoder"
    if name.endswith(IMAGE_CLASSIFIER):
        return "image"
    is_embedder = name in ARCHITECTURES and (folder / SENTENCE_MODULES).is_file()
    return "decoder" if name in HEADLESS or is_embedder else None
