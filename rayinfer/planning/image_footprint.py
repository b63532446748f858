"""Footprint of a model's vision half: weights, the largest activation, tokens of an image, operations to encode it."""

from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.images.headers import ImageSize
from rayinfer.images.prompts import ARCHITECTURES, PROCESSOR_FILES, ImagePrompts, PatchedPrompts, TiledPrompts
from rayinfer.images.shapes import MAX_TILED_SIDE
from rayinfer.models.config_fields import read_json
from rayinfer.models.vision.image_model import empty_image_model
from rayinfer.models.vision.qwen_config import QwenVisionConfig, read_qwen_vision_config
from rayinfer.models.vision.vision_config import VisionConfig, read_vision_config

DEFAULT_SIZE = ImageSize(1024, 1024)
ASSUMED_TILES = 4  # a side, of an image whose processor's settings are not there, as published models have it


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFootprint:
    """Counts of the vision half; it is never quantized, and rank 0 has all of it."""

    width: int  # pixels of the image that tokens and operations are of
    height: int
    parameters: int
    weight_bytes: float
    activation_bytes: float  # of a layer, for the largest image that the processor lets through
    tokens_per_image: int
    operations_per_image: float
    assumes_processor: bool  # its settings are not beside config.json


def image_footprint(folder: Path, text_hidden_size: int, float_bytes: int, size: ImageSize) -> ImageFootprint | None:
    """Count a checkpoint's vision half; None for a model that reads texts only. Raises ModelLoadError, ConfigError."""
    has_processor = any((folder / name).is_file() for name in PROCESSOR_FILES)
    prompts = ImagePrompts.from_folder(folder) if has_processor else _assumed_prompts(folder)
    if prompts is None:
        return None
    if (reason := prompts.refusal(size)) is not None:
        raise ConfigError(f"an image of {size.width} x {size.height} pixels is refused: {reason}")
    model = empty_image_model(folder, prompts, text_hidden_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(prompts, PatchedPrompts):
        qwen = read_qwen_vision_config(folder, text_hidden_size)
        num_patches = prompts.num_tokens(size) * prompts.merge_size**2
        most_patches = prompts.shape.max_pixels // prompts.patch_size**2
        attention, activation = _windowed_attention(qwen, num_patches), _qwen_activation(qwen, most_patches)
    else:
        config = read_vision_config(folder, text_hidden_size)
        patches_a_tile = (prompts.shape.tile_side // config.patch_size) ** 2
        num_patches = prompts.shape.grid(size.height, size.width).num_tiles * patches_a_tile
        attention = 4.0 * config.hidden_size * config.num_layers * num_patches * patches_a_tile
        activation = _tile_activation(config, patches_a_tile)
    return ImageFootprint(
        width=size.width,
        height=size.height,
        parameters=parameters,
        weight_bytes=float(parameters * float_bytes),
        activation_bytes=float(activation * float_bytes + _pixel_bytes(prompts)),
        tokens_per_image=prompts.num_tokens(size),
        operations_per_image=2.0 * parameters * num_patches + attention,
        assumes_processor=not has_processor,
    )


def _assumed_prompts(folder: Path) -> TiledPrompts | PatchedPrompts | None:
    """Return the prompts of a config.json alone, with the defaults of its processor."""
    raw = read_json(folder / "config.json")
    named = raw.get("architectures")
    kinds = [ARCHITECTURES[name] for name in named if name in ARCHITECTURES] if isinstance(named, list) else []
    if not kinds:
        return None
    try:
        if kinds[0] is TiledPrompts:
            side = read_vision_config(folder, 1).image_size
            settings = {"max_image_size": {"longest_edge": side}, "size": {"longest_edge": ASSUMED_TILES * side}}
            return TiledPrompts.read(raw, settings)
        sizes = raw["vision_config"]
        names = {"patch_size": "patch_size", "merge_size": "spatial_merge_size"}
        return PatchedPrompts.read(raw, {name: sizes[theirs] for name, theirs in names.items() if theirs in sizes})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{folder}: wrong vision_config: {error}") from None


def _tile_activation(config: VisionConfig, num_patches: int) -> int:
    """Count the numbers of a layer: its input, the normed one, and what is wider, of attention or feed-forward."""
    return num_patches * (2 * config.hidden_size + max(4 * config.hidden_size, 2 * config.intermediate_size))


def _qwen_activation(config: QwenVisionConfig, num_patches: int) -> int:
    inner = (3 if config.is_second else 2) * config.intermediate_size
    return num_patches * (2 * config.hidden_size + max(4 * config.hidden_size, inner))


def _windowed_attention(config: QwenVisionConfig, num_patches: int) -> float:
    """Count the operations of attention: to all patches in some layers, within windows in the others."""
    num_global = len(config.layers_that_see_all)
    in_window = (config.window_size // config.patch_size) ** 2
    seen = num_global * num_patches + (config.num_layers - num_global) * min(in_window, num_patches)
    return 4.0 * config.hidden_size * num_patches * seen


def _pixel_bytes(prompts: TiledPrompts | PatchedPrompts) -> int:
    """Count the bytes of the largest decoded image."""
    if isinstance(prompts, PatchedPrompts):
        return 3 * prompts.shape.max_pixels
    return 3 * min(prompts.shape.longest_edge, MAX_TILED_SIDE) ** 2
