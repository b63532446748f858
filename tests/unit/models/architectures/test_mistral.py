import copy

import pytest
from transformers import MistralConfig

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.architectures.mistral import MistralForCausalLM
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "sliding_window": 20,
}
VARIATIONS = {
    "grouped queries": {},
    "no window": {"sliding_window": None},
    "window of one token": {"sliding_window": 1},
    "window of one block": {"sliding_window": 8},
    "window just outgrown": {"sliding_window": 59},
    "head width of its own": {"head_dim": 24},
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_mistral_decodes_like_transformers(variation, tmp_path):
    settings = copy.deepcopy(SHAPE | VARIATIONS[variation])  # transformers changes what it is given
    assert_decodes_like_transformers(make_tiny_model(tmp_path, MistralConfig(**settings)))


def test_a_config_that_says_nothing_of_the_window_means_4096_tokens(tmp_path):
    folder = make_tiny_model(tmp_path, MistralConfig(**SHAPE))
    change_config(folder, without=["sliding_window"])
    decoder = MistralForCausalLM(read_model_config(folder))
    assert MistralConfig().sliding_window == 4096
    assert {layer.self_attn.attention.window for layer in decoder.model.layers} == {4096}


def test_layers_of_different_kinds_are_refused(tmp_path):
    kinds = ["full_attention", "sliding_attention"]
    folder = make_tiny_model(tmp_path, MistralConfig(**SHAPE))
    change_config(folder, layer_types=kinds)
    with pytest.raises(UnsupportedArchitecture, match="layer_types"):
        MistralForCausalLM(read_model_config(folder))
