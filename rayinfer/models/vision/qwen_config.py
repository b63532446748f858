"""Shape of the vision encoders of Qwen2-VL and Qwen2.5-VL."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.config_fields import RawConfig, count, number, read_json

FIRST, SECOND = "qwen2_vl", "qwen2_5_vl"  # values of `model_type`


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenVisionConfig:
    """Sizes of an encoder, with transformers' defaults."""

    is_second: bool  # of Qwen2.5-VL: RMS norms, a gated feed-forward, and windows
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int  # pixels a side
    num_frames: int  # that a patch spans; of an image all are the same
    merge_size: int  # patches a side that the merger makes one embedding of
    window_size: int  # pixels a side
    layers_that_see_all: frozenset[int]
    rope_theta: float
    text_hidden_size: int
    image_token_id: int

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_width(self) -> int:
        """Numbers of a patch."""
        return 3 * self.num_frames * self.patch_size**2


def read_qwen_vision_config(folder: Path, text_hidden_size: int) -> QwenVisionConfig:
    """Read config.json; raises ModelLoadError, UnsupportedArchitecture."""
    file = folder / "config.json"
    raw = read_json(file)
    part = raw.get("vision_config")
    try:
        if not isinstance(part, dict):
            raise ValueError(f"vision_config must be an object, got {part!r}")
        config = _read(raw, part, text_hidden_size)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field of vision_config: {error}") from None
    activation, known = part.get("hidden_act"), "silu" if config.is_second else "quick_gelu"
    if activation not in (None, known):
        raise UnsupportedArchitecture(f"vision_config: hidden_act {activation!r} is not supported, only {known}")
    return config


def _read(raw: RawConfig, part: RawConfig, text_hidden_size: int) -> QwenVisionConfig:
    is_second = raw.get("model_type") != FIRST
    num_layers = count(part, "depth", "num_hidden_layers", default=32)
    width = count(part, "hidden_size", default=3584) if is_second else count(part, "embed_dim", default=1280)
    inner = count(part, "intermediate_size", default=3420) if is_second else width * count(part, "mlp_ratio", default=4)
    rope = part.get("rope_parameters") or {}
    config = QwenVisionConfig(
        is_second=is_second,
        hidden_size=width,
        intermediate_size=inner,
        num_layers=num_layers,
        num_heads=count(part, "num_heads", "num_attention_heads", default=16),
        patch_size=count(part, "patch_size", default=14),
        num_frames=count(part, "temporal_patch_size", default=2),
        merge_size=count(part, "spatial_merge_size", default=2),
        window_size=count(part, "window_size", default=112),
        layers_that_see_all=_layers_that_see_all(part) if is_second else frozenset(range(num_layers)),
        rope_theta=number(rope, "rope_theta", default=10_000.0),
        text_hidden_size=text_hidden_size,
        image_token_id=count(raw, "image_token_id", default=151_655),
    )
    if config.hidden_size % (4 * config.num_heads):
        raise ValueError(f"hidden_size {config.hidden_size} is no multiple of 4 x {config.num_heads} heads")
    if count(part, "in_channels", "in_chans", default=3) != 3:
        raise ValueError("in_channels must be 3")
    given = count(part, "out_hidden_size" if is_second else "hidden_size", default=text_hidden_size)
    if given != text_hidden_size:
        raise ValueError(f"the encoder's outputs have a width of {given}, the language model's {text_hidden_size}")
    if config.window_size < config.patch_size * config.merge_size:
        raise ValueError(f"window_size {config.window_size} is below {config.merge_size} patches")
    return config


def _layers_that_see_all(part: RawConfig) -> frozenset[int]:
    layers: Any = part.get("fullatt_block_indexes")
    layers = (7, 15, 23, 31) if layers is None else layers
    if not isinstance(layers, list | tuple) or not all(isinstance(layer, int) for layer in layers):
        raise ValueError(f"fullatt_block_indexes must be a list of layers, got {layers!r}")
    return frozenset(layers)
