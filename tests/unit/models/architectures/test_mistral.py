import copy
import json

import pytest
import torch
from transformers import (
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
)

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.mistral import MistralForCausalLM
from rayinfer.models.loader import check_checkpoint
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import CLOSE, PROMPT, DecoderRun, assert_decodes_like_transformers, num_decoded_of
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
MINISTRAL_SHAPE = SHAPE | {"head_dim": 16, "pad_token_id": 0}
ORIGINAL = "original_max_position_embeddings"
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, ORIGINAL: 32, "mscale": 1.0, "mscale_all_dim": 1.0}
ROPE |= {"beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.5}
MINISTRAL_VARIATIONS = {
    "queries that grow every 32 tokens": {},
    "every 50 tokens": {"rope_parameters": ROPE | {ORIGINAL: 50}},
    "tied": {"tie_word_embeddings": True},
    "no window": {"sliding_window": None},
    "another epsilon": {"rms_norm_eps": 1e-3},
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


def ministral_config(**settings):
    return Ministral3Config(**MINISTRAL_SHAPE | {"rope_parameters": dict(ROPE)} | settings)


@pytest.mark.parametrize("variation", MINISTRAL_VARIATIONS)
def test_a_ministral_3_decodes_like_transformers(variation, tmp_path):
    folder = make_tiny_model(tmp_path, ministral_config(**MINISTRAL_VARIATIONS[variation]))
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, MINISTRAL_VARIATIONS))


@pytest.mark.parametrize("original", [32, 256])
def test_layers_run_as_one_operation_where_no_sequence_outgrows_the_original_length(
    original, tmp_path, compiled_kernels
):
    rope = ROPE | {ORIGINAL: original, "factor": 256 / original}
    folder = make_tiny_model(tmp_path, ministral_config(rope_parameters=rope))
    assert DecoderRun(folder).decoder.is_stacked == (original == 256)
    assert_decodes_like_transformers(folder)


@pytest.mark.parametrize("family", ["ministral3", "mistral"])
def test_the_language_model_of_a_checkpoint_that_reads_images_answers_alone(family, tmp_path):
    plain = MistralConfig(**MINISTRAL_SHAPE | {"sliding_window": None})
    text = ministral_config(sliding_window=None) if family == "ministral3" else plain
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "head_dim": 8}
    config = Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Mistral3ForConditionalGeneration(config).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Mistral3ForConditionalGeneration"]
    with torch.inference_mode():
        wanted = model(torch.tensor([PROMPT])).logits[0]
    (got,) = DecoderRun(tmp_path).feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize(
    ("rope", "error", "message"),
    [
        (ROPE | {"llama_4_scaling_beta": -1}, ModelLoadError, "llama_4_scaling_beta"),
        ({"rope_theta": 1e6, "llama_4_scaling_beta": 0.1}, UnsupportedArchitecture, ORIGINAL),
    ],
    ids=["negative", "no length"],
)
def test_a_wrong_scale_of_queries_is_named(rope, error, message, tmp_path):
    folder = change_config(make_tiny_model(tmp_path, ministral_config()), rope_parameters=rope)
    with pytest.raises(error, match=message):
        check_checkpoint(folder)
