"""Reads a checkpoint's RoPE settings, in either form of config.json."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rayinfer.models.config_fields import RawConfig, count, number

_NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
)
_OPTIONAL_NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        "longrope": ("factor", "attention_factor"),
    }
)
_ORIGINAL_LENGTH = "original_max_position_embeddings"
_WITH_ORIGINAL_LENGTH = ("llama3", "longrope", "yarn")
_STRETCHING = ("linear", "dynamic", "yarn")


def read_rope(raw: RawConfig, head_dim: int, *, layer_type: str | None = None) -> dict[str, Any]:
    """Gather the settings of one rotary embedding, those of `layer_type` where the config has one for each.

    Both forms: `rope_parameters` (transformers 5), and `rope_theta` beside `rope_scaling` (before).
    Raises ValueError or KeyError with the name of a wrong field.
    """
    rope: dict[str, Any] = {"rope_theta": 10000.0}
    rope |= {name: raw[name] for name in ("rope_theta", "partial_rotary_factor") if raw.get(name) is not None}
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(settings := raw.get(name) or {}, dict):
            raise ValueError(f"{name} must be an object, got {settings!r}")
        if layer_type is not None and isinstance(settings.get(layer_type), dict):
            settings = settings[layer_type]
        rope.update(settings)
    oldest_spelling = rope.pop("type", "default")
    rope.setdefault("rope_type", oldest_spelling)
    if rope["rope_type"] == "su" or (rope["rope_type"] == "yarn" and "long_factor" in rope):
        rope["rope_type"] = "longrope"  # what the first Phi-3 checkpoints call it
    if rope["rope_type"] != "default":
        rope["max_position_embeddings"] = count(raw, "max_position_embeddings")
    if rope["rope_type"] in _WITH_ORIGINAL_LENGTH:
        # As in transformers: what stands beside the rotary settings goes before what stands among them.
        given = raw if raw.get(_ORIGINAL_LENGTH) is not None else rope
        rope[_ORIGINAL_LENGTH] = count(given, _ORIGINAL_LENGTH, default=rope["max_position_embeddings"])
    _check(rope, head_dim)
    return rope


def stretched_length(max_positions: int, rope: Mapping[str, Any]) -> int:
    """The longest sequence that a scaling allows; at least max_positions, where sequences end by default."""
    if rope.get("rope_type") not in _STRETCHING or not rope.get("factor"):
        return max_positions
    return max(max_positions, int(rope["factor"] * rope.get(_ORIGINAL_LENGTH, max_positions)))


def _check(rope: Mapping[str, Any], head_dim: int) -> None:
    rope_type = rope["rope_type"]
    for name in ("rope_theta", *_NUMBERS.get(rope_type, ())):
        number(rope, name)
    for name in _OPTIONAL_NUMBERS.get(rope_type, ()):
        if rope.get(name):
            number(rope, name)
    rotary_dim = int(head_dim * number(rope, "partial_rotary_factor", default=1.0))
    least = 4 if rope_type == "dynamic" else 2
    if not least <= rotary_dim <= head_dim or rotary_dim % 2:
        raise ValueError(
            f"partial_rotary_factor must make an even number of a head's {head_dim} channels rotate, at least {least};"
            f" got {rope.get('partial_rotary_factor', 1.0)!r}"
        )
    if rope_type in ("yarn", "longrope"):
        _above_one(rope, "rope_theta", _ORIGINAL_LENGTH)
    if rope_type == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise ValueError(f"high_freq_factor {rope['high_freq_factor']} must be above low_freq_factor")
    if rope_type == "longrope":
        _check_factors(rope, "short_factor", rotary_dim // 2)
        _check_factors(rope, "long_factor", rotary_dim // 2)


def _above_one(rope: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if rope[name] <= 1:  # there is a division by its logarithm
            raise ValueError(f"{name} of rope type {rope['rope_type']!r} must be above 1, got {rope[name]!r}")


def _check_factors(rope: Mapping[str, Any], name: str, length: int) -> None:
    factors = rope[name]
    if not isinstance(factors, list) or len(factors) != length:
        raise ValueError(f"{name} must be a list of {length} numbers, got {factors!r}")
    for factor in factors:
        number({name: factor}, name)
