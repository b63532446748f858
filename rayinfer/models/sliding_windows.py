"""Sliding windows of layers: a list with the size of each layer's, None for full attention."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.config_fields import count, flag
from rayinfer.models.model_config import ModelConfig

GLOBAL, SLIDING = "full_attention", "sliding_attention"  # the kinds of layers by the words of config.json


def same_window_everywhere(config: ModelConfig, *, default: int | None = None) -> list[int | None]:
    """Read Mistral's form: one `sliding_window`, null for none, for all layers; `default` where it is absent."""
    named = "sliding_window" in config.raw
    window = default if not named else _window(config)
    return [window] * config.num_layers


def windows_by_layer(config: ModelConfig) -> list[int | None]:
    """Read Qwen's form: with `use_sliding_window`, the layers in `layer_types`, or from `max_window_layers` on.

    What is absent has transformers' default.
    """
    if not flag(config.raw, "use_sliding_window"):
        return [None] * config.num_layers
    window = same_window_everywhere(config, default=4096)[0]
    kinds = layer_kinds(config)
    if kinds is None:
        first = _layers_before_the_window(config)
        return [window if index >= first else None for index in range(config.num_layers)]
    return [window if kind == SLIDING else None for kind in kinds]


def layer_kinds(config: ModelConfig) -> list[str] | None:
    """Read `layer_types`, GLOBAL or SLIDING for each layer; None where older checkpoints do not have it."""
    kinds = config.raw.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != config.num_layers:
        raise ValueError(f"layer_types must be a list of {config.num_layers} names, got {kinds!r}")
    for kind in kinds:
        if kind not in (GLOBAL, SLIDING):
            raise UnsupportedArchitecture(f"layer type {kind!r} is not supported, only {GLOBAL} and {SLIDING}")
    return kinds


def _window(config: ModelConfig) -> int | None:
    return None if config.raw["sliding_window"] is None else count(config.raw, "sliding_window")


def _layers_before_the_window(config: ModelConfig) -> int:
    first = config.raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ValueError(f"max_window_layers must be a whole number, 0 or above, got {first!r}")
    return first
