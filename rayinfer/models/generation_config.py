"""Default sampling parameters of a model, from its generation_config.json or another folder's (no torch here)."""

import json
from pathlib import Path
from typing import Any

from rayinfer.config import EngineConfig
from rayinfer.errors import ConfigError
from rayinfer.sampling_defaults import SAMPLING_KEYS, sampling_defaults

GENERATION_CONFIG = "generation_config.json"


def default_sampling_params(config: EngineConfig, folder: Path) -> dict[str, Any]:
    """Return the defaults of requests to the model in `folder`, by their names in SamplingParams.

    Keys of `override_generation_config` replace those of the file, and null removes them. Raises ConfigError that names
    the file and the key at fault.
    """
    overrides = config.override_generation_config
    file = _file_of(config, folder)
    published = {} if file is None else _read(file)
    kept = {key: value for key, value in published.items() if key in SAMPLING_KEYS and key not in overrides}
    return sampling_defaults(kept, str(file)) | sampling_defaults(overrides, "override_generation_config")


def _file_of(config: EngineConfig, folder: Path) -> Path | None:
    if config.generation_config == "none":
        return None
    if config.generation_config == "auto":
        file = folder / GENERATION_CONFIG
        return file if file.is_file() else None
    file = Path(config.generation_config) / GENERATION_CONFIG
    if not file.is_file():
        raise ConfigError(f"generation_config must be auto, none or a folder: {file} does not exist")
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not a JSON object")
    return content
