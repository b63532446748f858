"""Shape of a vision encoder and of what connects it to a language model."""

from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.config_fields import count, number, read_json

ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """Sizes of a SigLIP encoder with Idefics3's connector, with transformers' defaults."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int  # pixels a side that the table of positions is for
    patch_size: int
    eps: float
    activation: str
    scale_factor: int  # embeddings a side that the connector makes one of
    text_hidden_size: int
    image_token_id: int  # of the marker whose embedding an image's take the place of


def read_vision_config(folder: Path, text_hidden_size: int) -> VisionConfig:
    """Read config.json; raises ModelLoadError, UnsupportedArchitecture."""
    file = folder / "config.json"
    raw = read_json(file)
    part = raw.get("vision_config")
    try:
        if not isinstance(part, dict):
            raise ValueError(f"vision_config must be an object, got {part!r}")
        config = VisionConfig(
            hidden_size=count(part, "hidden_size", default=1152),
            intermediate_size=count(part, "intermediate_size", default=3072),
            num_layers=count(part, "num_hidden_layers", default=12),
            num_heads=count(part, "num_attention_heads", default=16),
            image_size=count(part, "image_size", default=224),
            patch_size=count(part, "patch_size", default=32),
            eps=number(part, "layer_norm_eps", default=1e-6),
            activation=str(part.get("hidden_act", "gelu_pytorch_tanh")),
            scale_factor=count(raw, "scale_factor", default=2),
            text_hidden_size=text_hidden_size,
            image_token_id=count(raw, "image_token_id", default=128_257),
        )
        if config.hidden_size % config.num_heads:
            raise ValueError(f"hidden_size {config.hidden_size} is no multiple of {config.num_heads} heads")
        if count(part, "num_channels", default=3) != 3:
            raise ValueError("num_channels must be 3")
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{file}: missing or wrong field of vision_config: {error}") from None
    if config.activation not in ACTIVATIONS:
        known = " and ".join(ACTIVATIONS)
        raise UnsupportedArchitecture(f"vision_config: hidden_act {config.activation!r} is not supported, only {known}")
    return config
