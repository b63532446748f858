"""Default sampling parameters of a model, from the keys of a generation config; the keys are those that vLLM reads."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rayinfer.errors import ConfigError, InvalidParameter, shown
from rayinfer.sampling_params import SamplingParams

# Key of generation_config.json -> field of SamplingParams. Other keys, do_sample among them, have no effect.
SAMPLING_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "max_new_tokens": "max_tokens",
    }
)
SHOWN_KEYS = 5  # of those that are refused


def sampling_defaults(generation_config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Take the default sampling parameters out of a generation config, by their names in SamplingParams.

    A null counts as not given. Raises ConfigError that names `source`, the key and the value.
    """
    defaults = {}
    for key, field in SAMPLING_KEYS.items():
        if (value := generation_config.get(key)) is not None:
            _check(key, field, value, source)
            defaults[field] = value
    return defaults


def check_overrides(overrides: Mapping[str, Any], source: str) -> None:
    """Raise ConfigError for a wrong value, as `sampling_defaults` does, and for a key that has no effect."""
    if unknown := sorted(overrides.keys() - SAMPLING_KEYS.keys()):
        others = f" and {len(unknown) - SHOWN_KEYS} more" if len(unknown) > SHOWN_KEYS else ""
        keys = f"{', '.join(map(shown, unknown[:SHOWN_KEYS]))}{others}: no such key, or none that has an effect here"
        raise ConfigError(f"{source}: {keys}; there are {', '.join(SAMPLING_KEYS)}")
    sampling_defaults(overrides, source)


def _check(key: str, field: str, value: Any, source: str) -> None:
    if field == "max_tokens" and value == 0:  # which a request may ask for: its prompt is only scored
        raise ConfigError(f"{source}: {key} must be at least 1, got {shown(value)}")
    try:
        SamplingParams(**{field: value})
    except InvalidParameter as error:
        raise ConfigError(f"{source}: {key}{str(error).removeprefix(field)}") from None
