import pytest
from safetensors.torch import load_file
from transformers import Qwen3Config

from support.golden.decoder_runs import assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
VARIATIONS = {
    "grouped queries": {},
    "odd groups": {"num_attention_heads": 9, "num_key_value_heads": 3},
    "attention biases": {"attention_bias": True},
    "another epsilon": {"rms_norm_eps": 1e-3},
    "windows in the second layer": {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_qwen3_decodes_like_transformers(variation, tmp_path):
    folder = make_tiny_model(tmp_path, Qwen3Config(**(SHAPE | VARIATIONS[variation])))
    assert load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_norm.weight"].std() > 0.1
    assert_decodes_like_transformers(folder)
