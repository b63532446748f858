"""Turns a GGUF file into a model folder: configuration, safetensors and tokenizer (no torch here)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.gguf_file import GgufFile
from rayinfer.models.gguf_tokenizer import special_token_id, write_tokenizer
from rayinfer.models.model_folder import SINGLE_WEIGHTS
from rayinfer.models.safetensors_writer import TensorSpec, write_safetensors

Array = npt.NDArray[np.float32]

CONVERSION_VERSION = "1"  # part of the cache's folder names: what an older version wrote is made again

CONFIG_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

LLAMA_TENSORS = {
    r"token_embd\.weight": "model.embed_tokens.weight",
    r"output_norm\.weight": "model.norm.weight",
    r"output\.weight": "lm_head.weight",
    r"blk\.(\d+)\.attn_norm\.weight": r"model.layers.\1.input_layernorm.weight",
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.attn_(q|k|v)\.(weight|bias)": r"model.layers.\1.self_attn.\2_proj.\3",
    r"blk\.(\d+)\.attn_output\.(weight|bias)": r"model.layers.\1.self_attn.o_proj.\2",
    r"blk\.(\d+)\.ffn_(gate|up|down)\.(weight|bias)": r"model.layers.\1.mlp.\2_proj.\3",
}

# Llama 3's long-context rotation: GGUF keeps only the resulting factor of each frequency.
ROPE_FACTORS = "rope_freqs.weight"
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How one GGUF architecture becomes a Hugging Face checkpoint."""

    config: Callable[[GgufFile], dict[str, Any]]
    tensor_names: Mapping[str, str]  # pattern of the GGUF name -> replacement
    fix: Callable[[GgufFile, str, Array], Array]  # undoes what llama.cpp did to a tensor, by its GGUF name


def convert_gguf(file: Path, out: Path, *, progress: bool = False) -> None:
    """Write the model in `file` into the folder `out`, one tensor in memory at a time."""
    source = GgufFile(file)
    name = source.require("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedArchitecture(
            f"{file}: the GGUF architecture {name!r} is not supported; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    out.mkdir(parents=True, exist_ok=True)
    config = architecture.config(source)
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", {key: config[key] for key in config if key.endswith("_token_id")})
    write_tokenizer(source, out, max_length=config["max_position_embeddings"])
    _write_weights(source, architecture, out / SINGLE_WEIGHTS, progress=progress)


def _write_weights(source: GgufFile, architecture: Architecture, file: Path, *, progress: bool) -> None:
    names = [name for name in source.tensor_names if name != ROPE_FACTORS]
    specs = [TensorSpec(name=_new_name(source, architecture, name), shape=source.shape(name)) for name in names]

    def tensors() -> Iterator[Array]:
        title, console = f"converting {source.path.name}", Console(stderr=True)
        for name in track(names, title, console=console, transient=True, disable=not progress):
            yield architecture.fix(source, name, source.read(name))

    write_safetensors(file, source.matrix_dtype, specs, tensors())


def _new_name(source: GgufFile, architecture: Architecture, name: str) -> str:
    for pattern, replacement in architecture.tensor_names.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    raise UnsupportedArchitecture(f"{source.path}: tensor {name!r} has no place in the architecture")


def _llama_config(source: GgufFile) -> dict[str, Any]:
    heads = _count(source, "llama.attention.head_count")
    hidden_size = _count(source, "llama.embedding_length")
    head_dim = source.get("llama.attention.key_length") or source.get("llama.rope.dimension_count")
    tensor_names = frozenset(source.tensor_names)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "bos_token_id": special_token_id(source, "bos"),
        "dtype": CONFIG_DTYPES[source.matrix_dtype],
        "eos_token_id": special_token_id(source, "eos"),
        "head_dim": head_dim or hidden_size // heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": _count(source, "llama.feed_forward_length"),
        "max_position_embeddings": _count(source, "llama.context_length"),
        "mlp_bias": "blk.0.ffn_up.bias" in tensor_names,
        "num_attention_heads": heads,
        "num_hidden_layers": _count(source, "llama.block_count"),
        "num_key_value_heads": source.get("llama.attention.head_count_kv", heads),
        "pad_token_id": special_token_id(source, "padding"),
        "rms_norm_eps": _shortest(source.require("llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope_parameters(source),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "vocab_size": source.shape("token_embd.weight")[0],
    }
    return {key: value for key, value in config.items() if value is not None}


def _rope_parameters(source: GgufFile) -> dict[str, Any]:
    theta = _shortest(source.get("llama.rope.freq_base", 10000.0))
    scaling = source.get("llama.rope.scaling.type", "none")
    if ROPE_FACTORS in source.tensor_names:
        return {"rope_theta": theta, "rope_type": "llama3", **_llama3_rope(source, theta)}
    match scaling:
        case "none":
            return {"rope_theta": theta, "rope_type": "default"}
        case "linear":
            factor = _shortest(source.require("llama.rope.scaling.factor"))
            return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
    raise UnsupportedArchitecture(f"{source.path}: the rotary scaling {scaling!r} is not supported")


def _llama3_rope(source: GgufFile, theta: float) -> dict[str, float]:
    """Find the parameters that give the file's factors; refuse factors that Llama 3's rule cannot give."""
    factors = source.read(ROPE_FACTORS)
    factor = round(float(factors.max()), 3)
    low, high, original = LLAMA3_ROPE.values()
    wavelengths = 2 * np.pi * theta ** (np.arange(factors.size) / factors.size)
    kept = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)  # 1 where the frequency stays as it is
    if not np.allclose(factors, 1 / ((1 - kept) / factor + kept), rtol=1e-3):
        raise UnsupportedArchitecture(f"{source.path}: the factors in {ROPE_FACTORS!r} are not Llama 3's")
    return {"factor": factor, **LLAMA3_ROPE}


def _undo_interleaving(source: GgufFile, name: str, tensor: Array) -> Array:
    """Put query and key rows back: llama.cpp pairs neighbouring rows for rotation, transformers pairs halves."""
    if re.fullmatch(r"blk\.\d+\.attn_(q|k)\.(weight|bias)", name) is None:
        return tensor
    heads = _count(source, "llama.attention.head_count")
    if ".attn_k." in name:
        heads = source.get("llama.attention.head_count_kv", heads)
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _count(source: GgufFile, key: str) -> int:
    value = source.require(key)
    if not isinstance(value, int):
        raise UnsupportedArchitecture(f"{source.path}: {key!r} differs from layer to layer, which is not supported")
    return value


def _shortest(value: float) -> float:
    """Return the shortest decimal that rounds to this float32: the 1e-05 that someone once wrote."""
    return float(str(np.float32(value)))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {"llama": Architecture(config=_llama_config, tensor_names=LLAMA_TENSORS, fix=_undo_interleaving)}
)
