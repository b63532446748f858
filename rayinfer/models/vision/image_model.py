"""Vision half of a checkpoint: an image to embeddings in the language model's space."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.images.prompts import ImagePrompts, PatchedPrompts, TiledPrompts
from rayinfer.images.shapes import PatchGrid
from rayinfer.layers.checkpoint_slices import CheckpointSlice, checkpoint_slices
from rayinfer.models.loader import fill_model
from rayinfer.models.random_weights import fill_randomly
from rayinfer.models.vision.qwen_config import QwenVisionConfig, read_qwen_vision_config
from rayinfer.models.vision.qwen_vision import QwenVisionEncoder
from rayinfer.models.vision.siglip import Connector, SiglipEncoder
from rayinfer.models.vision.vision_config import VisionConfig, read_vision_config


class ImageModel(torch.nn.Module, ABC):
    """Vision half of a checkpoint; its tensors begin with `parts`."""

    parts: ClassVar[tuple[str, ...]]

    def __init__(self, image_token_id: int, prompts: ImagePrompts) -> None:
        super().__init__()
        self.image_token_id = image_token_id
        self._mean, self._deviation = prompts.mean, prompts.deviation

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return checkpoint_slices(self)

    def known_name(self, tensor_name: str) -> str | None:
        """Rename a tensor of the vision half; None for those of the text half."""
        name = tensor_name.removeprefix("model.")
        return name if name.startswith(self.parts) else None

    def prepare(self) -> None:
        """Do what comes once the weights are in."""

    def grid(self, pixels: torch.Tensor) -> PatchGrid | None:
        """Return the rows and columns of a decoded image's embeddings; None where their tokens have one position."""
        return None

    @abstractmethod
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode a decoded image [height, width, 3] uint8 -> [num_embeddings, text_hidden_size] in float32."""

    def _values(self, pixels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Bring pixels [height, width, 3] to what the model reads, [3, height, width] of its weights' type."""
        mean, deviation = (
            torch.tensor(values, device=weight.device).view(3, 1, 1) for values in (self._mean, self._deviation)
        )
        return ((pixels.permute(2, 0, 1).float() * (1 / 255) - mean) / deviation).to(weight.dtype)


class TiledImageModel(ImageModel):
    """SigLIP encoder and connector of an Idefics3 or SmolVLM checkpoint; tiles of an image lie one below the other."""

    parts = ("vision_model.", "connector.")

    def __init__(self, config: VisionConfig, prompts: TiledPrompts) -> None:
        super().__init__(config.image_token_id, prompts)
        self.vision_model, self.connector = SiglipEncoder(config), Connector(config)
        self._side = prompts.shape.tile_side

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """See ImageModel."""
        weight = self.vision_model.embeddings.patch_embedding.weight
        embeddings = []
        for tile in pixels.to(weight.device).view(-1, self._side, self._side, 3):
            values = self._values(tile, weight)
            embeddings.append(self.connector.forward(self.vision_model.forward(values)).float())
        return torch.cat(embeddings).cpu()


class PatchedImageModel(ImageModel):
    """Encoder of a Qwen2-VL or Qwen2.5-VL checkpoint."""

    parts = ("visual.",)

    def __init__(self, config: QwenVisionConfig, prompts: PatchedPrompts) -> None:
        super().__init__(config.image_token_id, prompts)
        self.visual = QwenVisionEncoder(config)
        self._shape = prompts.shape

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        slices = self.visual.checkpoint_slices()
        return {f"visual.{name}": replace(part, parameter=f"visual.{part.parameter}") for name, part in slices.items()}

    def prepare(self) -> None:
        """See ImageModel."""
        self.visual.prepare()

    def grid(self, pixels: torch.Tensor) -> PatchGrid | None:
        """See ImageModel."""
        return self._shape.grid_of_result(pixels.shape[0], pixels.shape[1])

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """See ImageModel."""
        weight = self.visual.patch_embed.proj.weight
        return self.visual.forward(self._values(pixels.to(weight.device), weight)).float().cpu()


def load_image_model(
    folder: Path, prompts: ImagePrompts, text_hidden_size: int, dtype: torch.dtype, device: torch.device
) -> ImageModel:
    """Build a checkpoint's vision half and fill it; raises ModelLoadError."""
    model = empty_image_model(folder, prompts, text_hidden_size)
    fill_model(model, folder, dtype, device)
    model.prepare()
    return model.eval()


def random_image_model(
    folder: Path, prompts: ImagePrompts, text_hidden_size: int, dtype: torch.dtype, device: torch.device
) -> ImageModel:
    """Build the vision half of a config.json and fill it with random numbers."""
    model = empty_image_model(folder, prompts, text_hidden_size)
    model.to(dtype).to_empty(device=device)
    fill_randomly(model, device)
    model.prepare()
    return model.eval()


def empty_image_model(folder: Path, prompts: ImagePrompts, text_hidden_size: int) -> ImageModel:
    """Build the vision half of a config.json on the meta device, where it has no weights."""
    if isinstance(prompts, PatchedPrompts):
        qwen_config = read_qwen_vision_config(folder, text_hidden_size)
        with torch.device("meta"):
            return PatchedImageModel(qwen_config, prompts)
    assert isinstance(prompts, TiledPrompts), "there are two kinds"
    config = read_vision_config(folder, text_hidden_size)
    if prompts.tokens_per_tile != (prompts.shape.tile_side // config.patch_size // config.scale_factor) ** 2:
        raise ModelLoadError(f"{folder}: a tile's embeddings by its processor's settings and by config.json differ")
    with torch.device("meta"):
        return TiledImageModel(config, prompts)
