"""Builds the encoder of images of an engine whose model reads them."""

from functools import partial
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.images.prompts import ImagePrompts
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.vision.image_model import load_image_model, random_image_model


def build_image_encoder(config: EngineConfig, folder: Path, model: ModelConfig) -> ImageEncoder | None:
    """Load the vision half of a checkpoint, in rank 0's process; None where there is none, and in a static engine.

    It is loaded before the KV pool is allocated, which then leaves room for it on a GPU. It is never quantized, and
    never sharded: embeddings travel to other ranks with the requests. Raises ModelLoadError.
    """
    prompts = ImagePrompts.from_folder(folder)
    if prompts is None or config.engine == "static":
        return None
    load = random_image_model if config.load_format == "dummy" else load_image_model
    dtype, device = torch_dtype(config.dtype, model), any_device()
    return ImageEncoder(partial(load, folder, prompts, model.hidden_size, dtype, device), prompts.shape)
