import pytest
from transformers import SmolLM3Config

from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import DecoderRun, assert_decodes_like_transformers, num_decoded_of
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
VARIATIONS = {
    "every fourth layer without rotary positions": {},
    "another interval, untied": {"no_rope_layer_interval": 2, "tie_word_embeddings": False},
    "a list of layers": {"no_rope_layers": [0, 1, 1, 0]},
    "no rotary positions at all": {"no_rope_layers": [0, 0, 0, 0]},
    "windows in layers without rotary positions": {
        **{"no_rope_layers": [0, 1, 0, 1]},
        **{"use_sliding_window": True, "sliding_window": 20},
    },
    "biases": {"attention_bias": True, "mlp_bias": True},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e6, "factor": 2.0,
                                 "original_max_position_embeddings": 128}},
}  # fmt: skip


def tiny(folder, **settings):
    return make_tiny_model(folder, SmolLM3Config(**SHAPE | settings))


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_smollm3_decodes_like_transformers(variation, tmp_path):
    folder = tiny(tmp_path, **VARIATIONS[variation])
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, VARIATIONS))


def test_fields_that_published_checkpoints_lack_have_their_defaults(tmp_path):
    folder = tiny(tmp_path)
    change_config(folder, without=("no_rope_layers", "layer_types", "tie_word_embeddings", "rope_parameters"))
    assert_decodes_like_transformers(folder, num_decoded=4)


def test_the_layers_run_as_one_operation_with_the_compiled_kernels(tmp_path, compiled_kernels):
    folder = tiny(tmp_path)
    assert DecoderRun(folder).decoder.is_stacked
    assert_decodes_like_transformers(folder)


@pytest.mark.parametrize("layers", [[1, 0], [1, 0, 2, 1], "1011"], ids=str)
def test_a_wrong_list_of_layers_is_named(layers, tmp_path):
    folder = change_config(tiny(tmp_path), no_rope_layers=layers)
    with pytest.raises(ModelLoadError, match="no_rope_layers"):
        check_checkpoint(folder)
