"""A random tiny model as a GGUF file, written the way llama.cpp's converter writes one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

NUMBERS = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
QUANTIZED = gguf.GGMLQuantizationType.Q8_0


def write_tiny_gguf(
    folder: Path,
    file: Path,
    *,
    architecture: str = "llama",
    quantized: bool = True,
    kind: gguf.GGMLQuantizationType = QUANTIZED,
    pre_tokenizer: str = "gpt-2",
    rope_factors: np.ndarray | None = None,
    extra_tensor: str | None = None,
    yarn_amplitude: float | None = None,
    sampling: Mapping[str, float] | None = None,
) -> Path:
    """Write the model in `folder` (single-file safetensors, byte-level tokenizer) as a GGUF, and return `file`."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, architecture)
    _add_shape(writer, config)
    ADD_DIFFERENCES.get(architecture, lambda writer, config: None)(writer, config)
    if yarn_amplitude is not None:
        writer.add_rope_scaling_attn_factors(yarn_amplitude)
    for key, value in (sampling or {}).items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{key}", value)
    _add_tokenizer(writer, folder, pre_tokenizer)
    number = NUMBERS[architecture if architecture in ADD_DIFFERENCES else "llama"]
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = _as_llama_cpp_stores_it(architecture, config, name, tensor.to(torch.float32).numpy())
        _add_tensor(
            writer, names.get_name(name, try_suffixes=(".weight", ".bias")), values, kind if quantized else None
        )
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    if extra_tensor is not None:
        writer.add_tensor(extra_tensor, np.zeros((4, config["hidden_size"]), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])


def _add_llama(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])


def _add_yarn(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _add_qwen3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_key_length(config["head_dim"])
    _add_yarn(writer, config)


def _add_phi3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope, head_dim = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_sliding_window(config["sliding_window"] or 0)
    if "long_factor" in rope:
        writer.add_rope_scaling_attn_factors(1.5)  # always written, and never other than the lengths have it
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))


def _add_gemma3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_key_length(config["head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_eot_token_id(1)
    if config["final_logit_softcapping"] is not None:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rope = config["rope_parameters"]["full_attention"]
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


ADD_DIFFERENCES = {
    "gemma3": _add_gemma3,
    "llama": _add_llama,
    "phi3": _add_phi3,
    "qwen2": _add_yarn,
    "qwen3": _add_qwen3,
}


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre_tokenizer: str) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(vocabulary)
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in vocabulary]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(vocabulary.index(settings["bos_token"]))
    writer.add_eos_token_id(vocabulary.index(settings["eos_token"]))
    writer.add_pad_token_id(vocabulary.index(settings["pad_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def _as_llama_cpp_stores_it(architecture: str, config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    if architecture != "llama" or (".q_proj." not in name and ".k_proj." not in name):
        return values
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = values.reshape(heads, 2, -1, *values.shape[1:])  # llama.cpp rotates neighboring rows together
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType | None) -> None:
    if kind is not None and values.ndim > 1:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)
