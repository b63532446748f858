import pytest
import torch
from safetensors.torch import load_file
from transformers import Olmo2Config, Olmo3Config

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint
from support.fakes.thread_ranks import run_threads
from support.golden.decoder_runs import assert_decodes_like_transformers, num_decoded_of
from support.services.shared_runs import answer_of
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

SLIDING, GLOBAL = "sliding_attention", "full_attention"
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.2}
OLMO_2 = {
    "grouped queries": {},
    "as many heads of keys": {"num_key_value_heads": 4},
    "attention biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "a large epsilon": {"rms_norm_eps": 1e-2},
}
OLMO_3 = {
    "windows in three of four layers": {"sliding_window": 16},
    "a list of layers": {"sliding_window": 20, "layer_types": [GLOBAL, SLIDING, SLIDING, GLOBAL]},
    "yarn in layers that see all": {"sliding_window": 16, "rope_parameters": {GLOBAL: YARN, SLIDING: {}}},
}


@pytest.mark.parametrize("variation", OLMO_2)
def test_an_olmo_2_decodes_like_transformers(variation, tmp_path):
    folder = make_tiny_model(tmp_path, Olmo2Config(**SHAPE | OLMO_2[variation]))
    assert load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_norm.weight"].std() > 0.1
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, OLMO_2))


@pytest.mark.parametrize("variation", OLMO_3)
def test_an_olmo_3_decodes_like_transformers(variation, tmp_path):
    folder = make_tiny_model(tmp_path, Olmo3Config(**SHAPE | OLMO_3[variation]))
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, OLMO_3))


def test_an_olmo_3_as_published_has_one_rope_scaling(tmp_path):
    folder = make_tiny_model(tmp_path, Olmo3Config(**SHAPE))
    usual = ("rope_parameters", "layer_types", "rms_norm_eps")
    change_config(folder, without=usual, sliding_window=16, rope_theta=500_000, rope_scaling=YARN)
    assert_decodes_like_transformers(folder, num_decoded=8)


def test_it_holds_with_the_compiled_kernels(tmp_path, compiled_kernels):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, Olmo3Config(**SHAPE | {"sliding_window": 16})))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 3), (6, 2), (5, 1)])
def test_norms_over_all_heads_are_those_of_the_whole_model_on_three_ranks(num_heads, num_kv_heads, tmp_path):
    shape = {"hidden_size": 16 * num_heads, "num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    folder = make_tiny_model(tmp_path, Olmo2Config(**SHAPE | shape))
    with torch.inference_mode():
        whole = answer_of(folder)
    for shared in run_threads(3, lambda group: answer_of(folder, group)):
        torch.testing.assert_close(shared.logits, whole.logits, atol=1e-4, rtol=0.0)
        assert shared.token_ids == whole.token_ids


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer_types": [GLOBAL]}, ModelLoadError, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 4}, UnsupportedArchitecture, "chunked_attention"),
        ({"sliding_window": 0}, ModelLoadError, "sliding_window"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(change, error, message, tmp_path):
    folder = change_config(make_tiny_model(tmp_path, Olmo3Config(**SHAPE)), **change)
    with pytest.raises(error, match=message):
        check_checkpoint(folder)
