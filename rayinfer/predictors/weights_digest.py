"""Digest of a predictor's weights and of the settings that its numbers depend on."""

from pathlib import Path

import torch
import xxhash

from rayinfer import __version__
from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.predictors.registered import registered_predictor_of

SUFFIXES = frozenset((".json", ".safetensors", ".onnx", ".data", ".pt2", ".pt", ".bin"))
SETTINGS = ("dtype", "quantization", "deterministic", "max_model_len", "load_format", "seed")
_CHUNK_BYTES = 2**20


def weights_digest(config: EngineConfig, folder: Path | None) -> str:
    """Return the digest, "" for a registered predictor: engines with the same one return the same numbers.

    Contents of files count, as weights may be replaced in place.
    """
    if folder is None or registered_predictor_of(config.model, folder) is not None:
        return ""  # its code may do anything
    digest = xxhash.xxh3_128()
    settings = [f"{name}={getattr(config, name)}" for name in SETTINGS]
    for text in (__version__, torch.__version__, any_device().type, *settings):
        digest.update(f"{text}\n".encode())
    for path in sorted(each for each in folder.rglob("*") if each.suffix in SUFFIXES and each.is_file()):
        digest.update(f"{path.relative_to(folder)}\n{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
