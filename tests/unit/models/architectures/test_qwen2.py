import copy

import pytest
from transformers import Qwen2Config

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 20}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
VARIATIONS = {
    "grouped queries": {},
    "tied": {"tie_word_embeddings": True},
    "odd groups, as Qwen2.5-0.5B has them": {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2},
    "windows after the first layers": WINDOW | {"max_window_layers": 1},
    "windows in all layers": WINDOW | {"max_window_layers": 0},
    "windows in the layers named": WINDOW | {"layer_types": KINDS},
    "a window that is not used": {"use_sliding_window": False, "sliding_window": 20, "max_window_layers": 0},
    "yarn, as for long contexts": {"rope_parameters": YARN},
}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_qwen2_decodes_like_transformers(variation, tmp_path):
    settings = copy.deepcopy(SHAPE | VARIATIONS[variation])  # transformers changes what it is given
    assert_decodes_like_transformers(make_tiny_model(tmp_path, Qwen2Config(**settings)))


@pytest.mark.parametrize("first", [0, 1, 3])
def test_older_checkpoints_say_only_from_which_layer_on_windows_are(first, tmp_path):
    folder = make_tiny_model(tmp_path, Qwen2Config(**SHAPE, **WINDOW, max_window_layers=first))
    assert_decodes_like_transformers(change_config(folder, layer_types=None))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden_act": "relu"}, UnsupportedArchitecture, "hidden_act 'relu'.*silu"),
        (WINDOW | {"layer_types": ["chunked_attention"] * 3}, UnsupportedArchitecture, "'chunked_attention'"),
        (WINDOW | {"layer_types": KINDS[:2]}, ModelLoadError, r"config\.json.*layer_types.*3 names"),
        (WINDOW | {"sliding_window": -1}, ModelLoadError, r"config\.json.*sliding_window.*-1"),
        (WINDOW | {"layer_types": None, "max_window_layers": -1}, ModelLoadError, "max_window_layers.*-1"),
        ({"use_sliding_window": "yes"}, ModelLoadError, "use_sliding_window.*'yes'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(change, error, message, tmp_path):
    folder = change_config(make_tiny_model(tmp_path, Qwen2Config(**SHAPE)), **change)
    with pytest.raises(error, match=message):
        check_checkpoint(folder)
