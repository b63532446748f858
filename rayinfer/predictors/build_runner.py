"""Builds the runner of a model folder."""

from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.predictors.runner import Runner


def build_runner(config: EngineConfig, folder: Path) -> Runner:
    """Load a folder's predictor; raises ModelLoadError and ConfigError."""
    raise UnsupportedArchitecture(f"{folder}: no predictor of this architecture is known to {config.model!r}")
