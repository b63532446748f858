"""GGUF architectures as Hugging Face checkpoints: configuration, names and tensors (no torch here).

llama.cpp's converter changed some tensors on the way; `restore` undoes that.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.gguf.gguf_file import GgufFile
from rayinfer.models.gguf.rope import rope_parameters, shortest
from rayinfer.models.gguf.tokenizer import special_token_id

Array = npt.NDArray[Any]  # of float32, or the bytes of blocks

_CONFIG_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# GGUF's name, as a pattern -> the checkpoint's.
_SHARED_TENSORS = {
    r"token_embd\.weight": "model.embed_tokens.weight",
    r"output_norm\.weight": "model.norm.weight",
    r"output\.weight": "lm_head.weight",
    r"blk\.(\d+)\.attn_norm\.weight": r"model.layers.\1.input_layernorm.weight",
    r"blk\.(\d+)\.attn_output\.(weight|bias)": r"model.layers.\1.self_attn.o_proj.\2",
    r"blk\.(\d+)\.ffn_down\.(weight|bias)": r"model.layers.\1.mlp.down_proj.\2",
}
_LLAMA_TENSORS = _SHARED_TENSORS | {
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.attn_(q|k|v)\.(weight|bias)": r"model.layers.\1.self_attn.\2_proj.\3",
    r"blk\.(\d+)\.ffn_(gate|up)\.(weight|bias)": r"model.layers.\1.mlp.\2_proj.\3",
}
_HEAD_NORMS = {r"blk\.(\d+)\.attn_(q|k)_norm\.weight": r"model.layers.\1.self_attn.\2_norm.weight"}
_PHI3_TENSORS = _SHARED_TENSORS | {
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.attn_qkv\.weight": r"model.layers.\1.self_attn.qkv_proj.weight",
    r"blk\.(\d+)\.ffn_up\.weight": r"model.layers.\1.mlp.gate_up_proj.weight",
}
_GEMMA3_TENSORS = _LLAMA_TENSORS | _HEAD_NORMS | {
    r"blk\.(\d+)\.post_attention_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.pre_feedforward_layernorm.weight",
    r"blk\.(\d+)\.post_ffw_norm\.weight": r"model.layers.\1.post_feedforward_layernorm.weight",
}  # fmt: skip


def _as_it_is(source: GgufFile, name: str, tensor: Array) -> Array:
    return tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The rules that make a Hugging Face checkpoint of one GGUF architecture."""

    config: Callable[[GgufFile], dict[str, Any]]
    tensor_names: Mapping[str, str]  # pattern of the GGUF name -> replacement
    restore: Callable[[GgufFile, str, Array], Array] = _as_it_is  # a tensor by its GGUF name


def _decoder_config(source: GgufFile, architecture: str, model_type: str) -> dict[str, Any]:
    """The fields that all decoders share."""
    kind = source.require("general.architecture")
    heads, hidden_size = _count(source, "attention.head_count"), _count(source, "embedding_length")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "bos_token_id": special_token_id(source, "bos"),
        "dtype": _CONFIG_DTYPES[source.matrix_dtype],
        "eos_token_id": _end_token_ids(source),
        "head_dim": source.get(f"{kind}.attention.key_length") or hidden_size // heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": _count(source, "feed_forward_length"),
        "max_position_embeddings": _count(source, "context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": _count(source, "block_count"),
        "num_key_value_heads": source.get(f"{kind}.attention.head_count_kv", heads),
        "pad_token_id": special_token_id(source, "padding"),
        "rms_norm_eps": shortest(source.require(f"{kind}.attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope_parameters(source),
        "tie_word_embeddings": "output.weight" not in source.tensor_names,
        "vocab_size": source.shape("token_embd.weight")[0],
    }


def _llama_config(source: GgufFile) -> dict[str, Any]:
    config = _decoder_config(source, "LlamaForCausalLM", "llama")
    head_dim = source.get("llama.attention.key_length") or source.get("llama.rope.dimension_count")
    return config | {
        "attention_bias": "blk.0.attn_q.bias" in source.tensor_names,
        "head_dim": head_dim or config["head_dim"],
        "mlp_bias": "blk.0.ffn_up.bias" in source.tensor_names,
    }


def _qwen2_config(source: GgufFile) -> dict[str, Any]:
    return _decoder_config(source, "Qwen2ForCausalLM", "qwen2")


def _qwen3_config(source: GgufFile) -> dict[str, Any]:
    return _decoder_config(source, "Qwen3ForCausalLM", "qwen3") | {
        "attention_bias": "blk.0.attn_q.bias" in source.tensor_names
    }


def _phi3_config(source: GgufFile) -> dict[str, Any]:
    config = _decoder_config(source, "Phi3ForCausalLM", "phi3")
    rope = config["rope_parameters"]
    rotary_dim = source.get("phi3.rope.dimension_count", config["head_dim"])
    rope["partial_rotary_factor"] = rotary_dim / config["head_dim"]
    window = source.get("phi3.attention.sliding_window")
    return config | {
        "original_max_position_embeddings": source.get(
            "phi3.rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
        "sliding_window": window or None,  # 0 stands for none
    }


def _gemma3_config(source: GgufFile) -> dict[str, Any]:
    config = _decoder_config(source, "Gemma3ForCausalLM", "gemma3_text")
    local_base = shortest(source.get("gemma3.rope.freq_base_swa", 10000.0))
    window = source.get("gemma3.attention.sliding_window")
    # The file does not keep what queries are scaled by: the width of a head, but for the 27B model.
    is_27b = config["num_hidden_layers"] == 62
    scalar = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    del config["hidden_act"]
    return config | {
        "final_logit_softcapping": source.get("gemma3.final_logit_softcapping"),
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": _gemma3_layer_types(source, has_window=bool(window)),
        "query_pre_attn_scalar": scalar,
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": {"rope_theta": local_base, "rope_type": "default"},
        },
        "sliding_window": window or None,
    }


def _gemma3_layer_types(source: GgufFile, *, has_window: bool) -> list[str]:
    """Return the layers' types: all but every sixth have a window, unless the file differs."""
    pattern = source.get("gemma3.attention.sliding_window_pattern", 6)
    if isinstance(pattern, int):
        pattern = [(index + 1) % pattern != 0 for index in range(_count(source, "block_count"))]
    return ["sliding_attention" if has_window and is_sliding else "full_attention" for is_sliding in pattern]


def _undo_interleaving(source: GgufFile, name: str, tensor: Array) -> Array:
    """Put query and key rows back: llama.cpp pairs neighboring rows for rotation, transformers pairs halves."""
    if re.fullmatch(r"blk\.\d+\.attn_(q|k)\.(weight|bias)", name) is None:
        return tensor
    heads = _count(source, "attention.head_count")
    if ".attn_k." in name:
        heads = source.get("llama.attention.head_count_kv", heads)
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _undo_unit_offset(source: GgufFile, name: str, tensor: Array) -> Array:
    """Let norms count from 1 again: llama.cpp adds it once and for all."""
    return tensor - 1 if name.endswith("norm.weight") else tensor


def _end_token_ids(source: GgufFile) -> int | list[int] | None:
    """The end of a text, and the end of a turn where that is another token."""
    of_text, of_turn = special_token_id(source, "eos"), special_token_id(source, "eot")
    if of_text is None or of_turn in (None, of_text):
        return of_text
    return [of_text, of_turn]


def _count(source: GgufFile, field: str) -> int:
    key = f"{source.require('general.architecture')}.{field}"
    value = source.require(key)
    if not isinstance(value, int):
        raise UnsupportedArchitecture(f"{source.path}: {key!r} differs from layer to layer, which is not supported")
    return value


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "gemma3": Architecture(config=_gemma3_config, tensor_names=_GEMMA3_TENSORS, restore=_undo_unit_offset),
        "llama": Architecture(config=_llama_config, tensor_names=_LLAMA_TENSORS, restore=_undo_interleaving),
        "phi3": Architecture(config=_phi3_config, tensor_names=_PHI3_TENSORS),
        "qwen2": Architecture(config=_qwen2_config, tensor_names=_LLAMA_TENSORS),
        "qwen3": Architecture(config=_qwen3_config, tensor_names=_LLAMA_TENSORS | _HEAD_NORMS),
    }
)
