"""Logits beside those of transformers, for what a Qwen3-MoE checkpoint may be."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import PROMPT, DecoderRun, assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SHAPES = {
    "8 experts, two per token": {},
    "tied": {"tie_word_embeddings": True},
    "weights as the router gives them": {"norm_topk_prob": False},
    "all experts for each token": {"num_experts": 5, "num_experts_per_tok": 5},
    "many experts of an odd width": {"num_experts": 40, "num_experts_per_tok": 8, "moe_intermediate_size": 11},
    "every second layer is sparse": {"num_hidden_layers": 4, "decoder_sparse_step": 2},
    "some layers are dense": {"num_hidden_layers": 4, "mlp_only_layers": [0, 2]},
    "both": {"num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2},
    "one head of keys": {"num_key_value_heads": 1},
    "as many heads of keys, an odd number": {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 5},
    "head width of its own": {"head_dim": 16},
    "attention biases": {"attention_bias": True},
    "sliding window": {"use_sliding_window": True, "sliding_window": 17},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, Qwen3MoeConfig(**TINY | SHAPES[shape])))


def test_it_decodes_like_transformers_with_the_compiled_kernels(tmp_path, compiled_kernels):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, Qwen3MoeConfig(**TINY)))


def test_experts_may_be_stored_all_in_one_tensor(tmp_path):
    single = make_tiny_model(tmp_path / "single", Qwen3MoeConfig(**TINY))
    fused = tmp_path / "fused"
    AutoModelForCausalLM.from_pretrained(single).save_pretrained(fused, save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(fused / "model.safetensors")
    assert torch.equal(DecoderRun(fused).feed((0, PROMPT))[0], DecoderRun(single).feed((0, PROMPT))[0])


def test_published_configs_spell_the_number_of_experts_otherwise_and_may_name_a_window_that_is_not_in_use(tmp_path):
    folder = make_tiny_model(tmp_path, Qwen3MoeConfig(**TINY))
    config = json.loads((folder / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")
    (folder / "config.json").write_text(json.dumps(config | {"use_sliding_window": False, "sliding_window": 17}))
    assert_decodes_like_transformers(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_only_layers": 3}, "mlp_only_layers must be a list of layers, got 3"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a whole number above 0, got 0"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false, got 'yes'"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
    ],
    ids=str,
)
def test_wrong_fields_are_named(change, message, tmp_path):
    folder = make_tiny_model(tmp_path, Qwen3MoeConfig(**TINY))
    change_config(folder, **change)
    with pytest.raises(ModelLoadError, match=message):
        check_checkpoint(folder)
