"""Logits and greedy tokens beside those of transformers, for every shape that a GPT-NeoX checkpoint may have."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPTNeoXConfig

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.gpt_neox import GPTNeoXForCausalLM
from rayinfer.models.loader import check_checkpoint
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import make_tiny_model, save_weights

SHAPES = {
    "as published": {},
    "tied": {"tie_word_embeddings": True},
    "one after the other": {"use_parallel_residual": False},
    "odd number of heads": {"hidden_size": 72, "num_attention_heads": 9},
    "all of a head turns": {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    "a few of a head's channels rotate": {"hidden_size": 96, "rope_parameters": {"partial_rotary_factor": 0.25}},
    "another rope base": {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5}},
    "no attention biases": {"attention_bias": False},
    "gelu by tanh": {"hidden_act": "gelu_new"},
    "fast gelu": {"hidden_act": "gelu_fast"},
    "another epsilon": {"layer_norm_eps": 1e-2},
    "odd vocabulary": {"vocab_size": 101},
}


def make_tiny_neox(folder, **settings):
    shape = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"intermediate_size": 100, "max_position_embeddings": 160} | settings
    return make_tiny_model(folder, GPTNeoXConfig(**shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_neox(tmp_path, **SHAPES[shape]))


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 3.0}], ids=str)
def test_old_checkpoints_have_other_words_for_rope_and_carry_masks_and_tables(scaling, tmp_path):
    folder = make_tiny_neox(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rotary_pct": 0.5, "rotary_emb_base": 700, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 160, 160).tril()
    weights["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    weights["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(4)
    save_weights(folder, weights)
    assert_decodes_like_transformers(folder)


def test_where_a_config_says_nothing_of_rope_a_quarter_of_each_head_turns(tmp_path):
    folder = make_tiny_neox(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config))
    assert_decodes_like_transformers(folder)


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.weight"])
def test_the_head_goes_by_its_old_name_and_its_new_one(name, tmp_path):
    folder = make_tiny_neox(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (head,) = {"embed_out.weight", "lm_head.weight"} & weights.keys()
    weights[name] = weights.pop(head)
    save_weights(folder, weights)
    assert_decodes_like_transformers(folder, num_decoded=1)


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.weight"])
def test_a_tied_checkpoint_may_carry_a_copy_of_its_head(name, tmp_path):
    folder = make_tiny_neox(tmp_path, tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    weights[name] = weights["gpt_neox.embed_in.weight"].clone()
    save_weights(folder, weights)
    check_checkpoint(folder)


def test_a_missing_tensor_is_named_in_the_checkpoints_own_words(tmp_path):
    folder = make_tiny_neox(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["gpt_neox.layers.1.attention.query_key_value.bias"]
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"lacks gpt_neox\.layers\.1\.attention\.query_key_value\.bias"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"hidden_act": "mish"}, "'mish'.*gelu_new"), ({"rope_parameters": {"rope_type": "warped"}}, "'warped'")],
    ids=str,
)
def test_what_the_layers_cannot_do_is_refused_by_name(change, message, tmp_path):
    folder = make_tiny_neox(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedArchitecture, match=message):
        GPTNeoXForCausalLM(read_model_config(folder))
