"""Turns a GGUF file into a model folder: configuration, safetensors and tokenizer (no torch here)."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.checkpoints.model_folder import SINGLE_WEIGHTS, WEIGHTS_INDEX
from rayinfer.models.checkpoints.safetensors_writer import TensorSpec, write_safetensors
from rayinfer.models.generation_config import GENERATION_CONFIG
from rayinfer.models.gguf.architectures import ARCHITECTURES, Architecture, Array
from rayinfer.models.gguf.gguf_file import GgufFile
from rayinfer.models.gguf.rope import ROPE_TENSORS, shortest
from rayinfer.models.gguf.tokenizer import write_tokenizer

SOURCE_NOTE = "gguf_source.json"  # which file a folder was made of
PLAIN_WEIGHTS, BLOCK_WEIGHTS = "plain.safetensors", "blocks.safetensors"
KEPT_KINDS = ("q4_0", "q4_1", "q4_k", "q6_k", "q8_0")  # as in models/quantized/gguf_blocks.py
_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def convert_gguf(
    file: Path,
    out: Path,
    *,
    progress: bool = False,
    generation_config: Mapping[str, Any] | None = None,
    keeps_blocks: bool = False,
    notes_source: bool = True,
) -> None:
    """Write the model in `file` into the folder `out`, one tensor in memory at a time.

    `generation_config` holds keys that the file lacks. Matrices are dequantized or, with `keeps_blocks`, keep the
    file's own blocks where these are of a kind that `models/quantized/gguf_blocks.py` reads. With
    `notes_source` the folder names the file, so that its blocks can be kept later.
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
    if keeps_blocks:
        config["quantization_config"] = {"quant_method": "gguf"}
    _write_json(out / "config.json", config)
    end_tokens = {key: config[key] for key in config if key.endswith("_token_id")}
    _write_json(out / GENERATION_CONFIG, end_tokens | _sampling_keys(source) | dict(generation_config or {}))
    if notes_source:
        status = file.stat()
        note = {"file": str(file.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        _write_json(out / SOURCE_NOTE, note)
    write_tokenizer(source, out, max_length=config["max_position_embeddings"])
    blocks = _names_in_blocks(source) if keeps_blocks else []
    _write_weights(source, architecture, out / (PLAIN_WEIGHTS if blocks else SINGLE_WEIGHTS), blocks, progress=progress)
    if blocks:
        _write_blocks(source, architecture, out, blocks)


def _names_in_blocks(source: GgufFile) -> list[str]:
    return [
        name
        for name in source.tensor_names
        if name not in ROPE_TENSORS and source.kind(name) in KEPT_KINDS and len(source.shape(name)) == 2
    ]


def _write_blocks(source: GgufFile, architecture: Architecture, out: Path, names: list[str]) -> None:
    """Write the matrices that keep their blocks, and the index that brings them and the plain tensors together."""
    specs = [
        TensorSpec(name=f"{_new_name(source, architecture, name)}.{source.kind(name)}", shape=source.raw(name).shape)
        for name in names
    ]
    # What llama.cpp changes in matrices is the order of their rows alone.
    tensors = (architecture.restore(source, name, source.raw(name)) for name in names)
    write_safetensors(out / BLOCK_WEIGHTS, "U8", specs, tensors)
    plain = [name for name in source.tensor_names if name not in ROPE_TENSORS and name not in names]
    weight_map = {_new_name(source, architecture, name): PLAIN_WEIGHTS for name in plain}
    weight_map |= {spec.name: BLOCK_WEIGHTS for spec in specs}
    _write_json(out / WEIGHTS_INDEX, {"metadata": {}, "weight_map": weight_map})


def _write_weights(
    source: GgufFile, architecture: Architecture, file: Path, left_out: list[str], *, progress: bool
) -> None:
    names = [name for name in source.tensor_names if name not in ROPE_TENSORS and name not in left_out]
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
