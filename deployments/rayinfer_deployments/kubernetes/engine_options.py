"""A model's engine settings as options of `rayinfer serve` and `rayinfer batch run`."""

import json
from typing import Any

from rayinfer.config import EngineConfig

ENGINE_SETTINGS = sorted(name for name in EngineConfig.model_fields if name != "model")


def engine_options(model: dict[str, Any]) -> list[str]:
    """Write the engine's part of a model's settings, in the order of their names as the chart does."""
    options: list[str] = []
    for name in ENGINE_SETTINGS:
        value = model.get(name)
        if value is None:
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            text = value if isinstance(value, str) else json.dumps(_short(value), separators=(",", ":"), sort_keys=True)
            options += [f"--{option}", text]
    return options


def _short(value: Any) -> Any:
    """Write 1.0 as 1, as the chart does."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
