"""Logits and greedy tokens beside those of transformers, for every shape that a GPT-2 checkpoint may have."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.gpt2 import GPT2LMHeadModel
from rayinfer.models.loader import check_checkpoint
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model, save_weights

SHAPES = {
    "as published": {},
    "untied": {"tie_word_embeddings": False},
    "odd number of heads": {"n_embd": 72, "n_head": 9},
    "width of its own": {"n_inner": 50},
    "scores divided by the layer's number": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "scores not scaled": {"scale_attn_weights": False},
    "another gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "another epsilon": {"layer_norm_epsilon": 1e-2},
    "odd vocabulary": {"vocab_size": 101},
}


def make_tiny_gpt2(folder, **settings):
    shape = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 160} | settings
    return make_tiny_model(folder, GPT2Config(**shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_gpt2(tmp_path, **SHAPES[shape]))


def test_the_first_checkpoints_have_no_prefix_carry_masks_and_leave_out_what_is_usual(tmp_path):
    folder = make_tiny_gpt2(tmp_path)
    weights = {name.removeprefix("transformer."): w for name, w in load_file(folder / "model.safetensors").items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 160, 160).tril()
    weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_weights(folder, weights)
    usual = ("tie_word_embeddings", "n_inner", "activation_function", "scale_attn_weights", "layer_norm_epsilon")
    change_config(folder, without=usual)
    assert_decodes_like_transformers(folder)


def test_a_missing_tensor_is_named_in_the_checkpoints_own_words(tmp_path):
    folder = make_tiny_gpt2(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"lacks transformer\.h\.1\.mlp\.c_fc\.weight"):
        check_checkpoint(folder)


def test_a_weight_that_was_turned_already_is_refused_with_both_shapes(tmp_path):
    folder = make_tiny_gpt2(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.0.attn.c_attn.weight"] = weights["transformer.h.0.attn.c_attn.weight"].T.contiguous()
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"c_attn\.weight has shape \(192, 64\), expected \(64, 192\)"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"activation_function": "tanh"}, "'tanh'.*gelu_new"), ({"add_cross_attention": True}, "add_cross_attention")],
    ids=str,
)
def test_what_the_layers_cannot_do_is_refused_by_name(change, message, tmp_path):
    folder = make_tiny_gpt2(tmp_path)
    change_config(folder, **change)
    with pytest.raises(UnsupportedArchitecture, match=message):
        GPT2LMHeadModel(read_model_config(folder))
