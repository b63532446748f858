"""Vision half of a checkpoint: tiles of an image to embeddings in the language model's space."""

from collections.abc import Mapping
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.images.prompts import ImagePrompts
from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices
from rayinfer.models.loader import fill_model
from rayinfer.models.random_weights import fill_randomly
from rayinfer.models.vision.siglip import Connector, SiglipEncoder
from rayinfer.models.vision.vision_config import VisionConfig, read_vision_config

_PARTS = ("vision_model.", "connector.")


class ImageModel(torch.nn.Module):
    """SigLIP encoder and connector of an Idefics3 or SmolVLM checkpoint."""

    def __init__(self, config: VisionConfig, prompts: ImagePrompts) -> None:
        super().__init__()
        self.image_token_id = config.image_token_id
        self.embedding_size = config.text_hidden_size
        self.vision_model, self.connector = SiglipEncoder(config), Connector(config)
        self._side = prompts.shape.tile_side
        self._mean, self._deviation = prompts.mean, prompts.deviation

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return checkpoint_slices(self)

    def known_name(self, tensor_name: str) -> str | None:
        """Rename a tensor of the vision half; None for those of the text half."""
        name = tensor_name.removeprefix("model.")
        return name if name.startswith(_PARTS) else None

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode tiles that lie one below the other.

        pixels [num_tiles * side, side, 3] uint8 -> [num_tiles * embeddings of a tile, text_hidden_size] in float32.
        """
        weight = self.vision_model.embeddings.patch_embedding.weight
        mean, deviation = (
            torch.tensor(values, device=weight.device).view(3, 1, 1) for values in (self._mean, self._deviation)
        )
        embeddings = []
        for tile in pixels.to(weight.device).view(-1, self._side, self._side, 3):
            values = (tile.permute(2, 0, 1).float() * (1 / 255) - mean) / deviation
            embeddings.append(self.connector.forward(self.vision_model.forward(values.to(weight.dtype))).float())
        return torch.cat(embeddings).cpu()


def load_image_model(
    folder: Path, prompts: ImagePrompts, text_hidden_size: int, dtype: torch.dtype, device: torch.device
) -> ImageModel:
    """Build a checkpoint's vision half and fill it; raises ModelLoadError."""
    model = _empty(folder, prompts, text_hidden_size)
    fill_model(model, folder, dtype, device)
    return model.eval()


def random_image_model(
    folder: Path, prompts: ImagePrompts, text_hidden_size: int, dtype: torch.dtype, device: torch.device
) -> ImageModel:
    """Build the vision half of a config.json and fill it with random numbers."""
    model = _empty(folder, prompts, text_hidden_size)
    model.to(dtype).to_empty(device=device)
    fill_randomly(model, device)
    return model.eval()


def _empty(folder: Path, prompts: ImagePrompts, text_hidden_size: int) -> ImageModel:
    config = read_vision_config(folder, text_hidden_size)
    if prompts.tokens_per_tile != (prompts.shape.tile_side // config.patch_size // config.scale_factor) ** 2:
        raise ModelLoadError(f"{folder}: a tile's embeddings by its processor's settings and by config.json differ")
    with torch.device("meta"):
        return ImageModel(config, prompts)
