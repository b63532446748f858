"""Turns a GGUF file into a model folder: configuration, safetensors and tokenizer (no torch here)."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.checkpoints.model_folder import SINGLE_WEIGHTS
from rayinfer.models.checkpoints.safetensors_writer import TensorSpec, write_safetensors
from rayinfer.models.generation_config import GENERATION_CONFIG
from rayinfer.models.gguf.architectures import ARCHITECTURES, Architecture, Array
from rayinfer.models.gguf.gguf_file import GgufFile
from rayinfer.models.gguf.rope import ROPE_TENSORS, shortest
from rayinfer.models.gguf.tokenizer import write_tokenizer

_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def convert_gguf(
    file: Path, out: Path, *, progress: bool = False, generation_config: Mapping[str, Any] | None = None
) -> None:
    """Write the model in `file` into the folder `out`, one tensor in memory at a time.

    `generation_config` holds keys that the file lacks.
    """
    source = GgufFile(file)
    name = source.require("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedArchitecture(
            f"{file}: the GGUF architecture {name!r} is not supported; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    out.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in architecture.config(source).items() if value is not None}
    _write_json(out / "config.json", config)
    end_tokens = {key: config[key] for key in config if key.endswith("_token_id")}
    _write_json(out / GENERATION_CONFIG, end_tokens | _sampling_keys(source) | dict(generation_config or {}))
    write_tokenizer(source, out, max_length=config["max_position_embeddings"])
    _write_weights(source, architecture, out / SINGLE_WEIGHTS, progress=progress)


def _write_weights(source: GgufFile, architecture: Architecture, file: Path, *, progress: bool) -> None:
    names = [name for name in source.tensor_names if name not in ROPE_TENSORS]
    specs = [TensorSpec(name=_new_name(source, architecture, name), shape=source.shape(name)) for name in names]

    def tensors() -> Iterator[Array]:
        title, console = f"converting {source.path.name}", Console(stderr=True)
        for name in track(names, title, console=console, transient=True, disable=not progress):
            yield architecture.restore(source, name, source.read(name))

    write_safetensors(file, source.matrix_dtype, specs, tensors())


def _new_name(source: GgufFile, architecture: Architecture, name: str) -> str:
    for pattern, replacement in architecture.tensor_names.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    raise UnsupportedArchitecture(f"{source.path}: tensor {name!r} is unknown to the architecture")


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sampling_keys(source: GgufFile) -> dict[str, Any]:
    """Read the sampling parameters that the model's makers recommend; the other samplers of llama.cpp are left out."""
    values = {name: source.get(key) for key, name in _SAMPLING_KEYS.items()}
    return {
        name: shortest(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }
