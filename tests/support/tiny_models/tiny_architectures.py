"""A tiny checkpoint of every architecture, with heads and vocabularies that do not divide evenly."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from support.golden.encoder_decoder_runs import make_tiny_marian, make_tiny_t5
from support.tiny_models.tiny_checkpoints import make_tiny_model

_LAYERS = {
    **{"hidden_size": 96, "intermediate_size": 100, "num_hidden_layers": 3, "max_position_embeddings": 256},
    **{"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 97},
}
_END = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_KINDS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_FIVE_HEADS = {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 5}
_EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 2, "intermediate_size": 40}
_ONE_HEAD = {"num_attention_heads": 4, "num_key_value_heads": 1}
_MULTIPLIERS = {
    **{"embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    **{"attention_multiplier": 0.08, "logits_scaling": 4.0},
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}

# By a name that says what is special; the configuration's class decides the architecture.
DECODERS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        name: lambda folder, config=config, settings=settings: make_tiny_model(folder, config(**settings))
        for name, config, settings in (
            ("llama", LlamaConfig, _LAYERS | {"attention_bias": True, "mlp_bias": True}),
            ("llama, tied, one head of keys", LlamaConfig, _LAYERS | _ONE_HEAD | {"tie_word_embeddings": True}),
            ("mistral", MistralConfig, _LAYERS | {"sliding_window": 20}),
            ("qwen2", Qwen2Config, _LAYERS | _ONE_HEAD),
            ("qwen3", Qwen3Config, _LAYERS),
            ("qwen3-moe", Qwen3MoeConfig, _LAYERS | _EXPERTS
             | {"num_experts": 5, "moe_intermediate_size": 24, "decoder_sparse_step": 2, "norm_topk_prob": True}),
            ("mixtral", MixtralConfig, _LAYERS | _EXPERTS | {"num_local_experts": 5}),
            ("phi3", Phi3Config, _LAYERS | _END),
            ("gemma3", Gemma3TextConfig, _LAYERS | _KINDS
             | {"sliding_window": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0}),
            ("smollm3", SmolLM3Config, _LAYERS | _END | {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": False}),
            ("granite", GraniteConfig, _LAYERS | _MULTIPLIERS | {"tie_word_embeddings": True}),
            ("granite 4", GraniteMoeHybridConfig, _LAYERS | _MULTIPLIERS | {"num_local_experts": 0,
             "shared_intermediate_size": 100, "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope",
             "mamba_n_heads": 6}),
            ("olmo2, one head of keys", Olmo2Config, _LAYERS | _END | _ONE_HEAD),
            ("olmo3", Olmo3Config, _LAYERS | _END | _KINDS | {"sliding_window": 16,
             "rope_parameters": {"full_attention": _YARN, "sliding_attention": {"rope_theta": 1e4}}}),
            ("ministral3", Ministral3Config, _LAYERS | _END | {"head_dim": 16,
             "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}),
            ("gpt-oss", GptOssConfig, _LAYERS | _END | _EXPERTS | _KINDS | {"head_dim": 16, "num_local_experts": 5,
             "sliding_window": 16, "swiglu_limit": 0.7, "rope_parameters": _YARN | {"truncate": False}}),
            ("gpt2", GPT2Config, {"vocab_size": 97, "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": 160}),
            ("gpt-neox", GPTNeoXConfig, _LAYERS | _FIVE_HEADS),
            ("gpt-neox, one after the other", GPTNeoXConfig, _LAYERS | _FIVE_HEADS
             | {"use_parallel_residual": False}),
        )
    }
)  # fmt: skip

ENCODER_DECODERS: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "t5": lambda folder: make_tiny_t5(folder, num_heads=5, vocab_size=97),
        "t5, version 1.1": lambda folder: make_tiny_t5(
            folder, owns_head=True, feed_forward_proj="gated-gelu", query_width=0.125
        ),
        "marian": lambda folder: make_tiny_marian(
            folder, d_model=72, encoder_attention_heads=3, decoder_attention_heads=9, vocab_size=97
        ),
    }
)
