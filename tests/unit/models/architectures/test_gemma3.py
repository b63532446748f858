"""Logits and greedy tokens beside those of transformers, for every shape that a Gemma 3 checkpoint may have."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3TextConfig

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.gemma3 import Gemma3ForCausalLM
from rayinfer.models.loader import check_checkpoint
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import CLOSE, PROMPT, DecoderRun, assert_decodes_like_transformers, transformers_logits
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model, save_weights

SLIDING, GLOBAL = "sliding_attention", "full_attention"
LINEAR = {SLIDING: {"rope_theta": 300.0}, GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e4}}
SHAPES = {
    "grouped queries": {},
    "untied": {"tie_word_embeddings": False},
    "one head of keys": {"num_key_value_heads": 1},
    "as many heads of keys": {"num_key_value_heads": 4},
    "odd number of heads": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "published head width": {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "sliding layers only": {"layer_types": [SLIDING] * 2, "num_hidden_layers": 2},
    "window of one token": {"sliding_window": 1},
    "linear rope": {"rope_parameters": LINEAR},
    "attention biases": {"attention_bias": True},
    "another query scale": {"query_pre_attn_scalar": 100},
    "capped logits": {"final_logit_softcapping": 5.0},
    "another epsilon": {"rms_norm_eps": 1e-3},
}


def tiny_config(**settings):
    shape = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4, "head_dim": 16}
    shape |= {"num_hidden_layers": 4, "layer_types": [SLIDING, GLOBAL, SLIDING, GLOBAL], "num_key_value_heads": 2}
    shape |= {"sliding_window": 16, "max_position_embeddings": 160, "query_pre_attn_scalar": 16}
    return Gemma3TextConfig(**shape | settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, tiny_config(**SHAPES[shape])))


def test_older_checkpoints_have_other_words_for_rope_and_layers(tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config())
    old = {"rope_theta": 5e4, "rope_local_base_freq": 300.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    usual = (
        "rope_parameters",
        "layer_types",
        "tie_word_embeddings",
        "hidden_activation",
        "use_bidirectional_attention",
    )
    change_config(folder, without=usual, sliding_window_pattern=2, **old)
    assert_decodes_like_transformers(folder)


def test_what_the_config_leaves_out_is_as_usual(tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config(layer_types=None, num_hidden_layers=7))
    change_config(folder, without=("rope_parameters", "layer_types", "_sliding_window_pattern"))
    assert_decodes_like_transformers(folder, num_decoded=1)


def test_scores_are_capped_where_the_config_says_so(tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config(attn_logit_softcapping=0.5))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        wanted = model(torch.tensor([PROMPT]), softcap=0.5).logits[0]  # transformers does not read the config's own
        uncapped = model(torch.tensor([PROMPT])).logits[0]
    (got,) = DecoderRun(folder).feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)
    assert (got - uncapped).abs().max() > 0.01


def test_bfloat16_stays_as_close_to_the_exact_logits_as_transformers_does(tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config(hidden_size=80, dtype="bfloat16"))
    exact = transformers_logits(folder, PROMPT)
    theirs = transformers_logits(folder, PROMPT, torch.bfloat16)
    (got,) = DecoderRun(folder, torch.bfloat16).feed((0, PROMPT))
    assert (got.float() - exact).abs().mean() < 1.2 * (theirs.float() - exact).abs().mean()


def test_embeddings_are_scaled_by_what_is_left_of_the_scale_in_the_models_dtype(tmp_path):
    run = DecoderRun(make_tiny_model(tmp_path, tiny_config(hidden_size=80)), torch.bfloat16)
    token_ids = torch.tensor([3, 5])
    rows = run.decoder.model.embed_tokens.gather_rows(token_ids)
    scaled = run.decoder.embed(token_ids, None)
    assert torch.equal(scaled, rows * torch.tensor(8.9375, dtype=torch.bfloat16))  # not by 8.944


@pytest.mark.parametrize("names", ["as published", "as transformers 5 has them"])
def test_the_language_model_of_a_checkpoint_that_reads_images_answers_alone(names, tmp_path):
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=tiny_config(), vision_config=vision, mm_tokens_per_image=4)
    folder = make_tiny_model(tmp_path, config)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Gemma3ForConditionalGeneration"]
    if names != "as published":
        weights = load_file(folder / "model.safetensors")
        parts = {"language_model.model.": "language_model.", "vision_tower.": "vision_tower."}
        parts["multi_modal_projector."] = "multi_modal_projector."
        for old, new in parts.items():
            weights = {name.replace(old, f"model.{new}"): weight for name, weight in weights.items()}
        save_weights(folder, weights)
    assert_decodes_like_transformers(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "relu"}, "'relu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "warped"}}}, "'warped'"),
    ],
    ids=str,
)
def test_what_the_layers_cannot_do_is_refused_by_name(change, message, tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config())
    change_config(folder, **change)
    with pytest.raises(UnsupportedArchitecture, match=message):
        Gemma3ForCausalLM(read_model_config(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"query_pre_attn_scalar": -1}, "query_pre_attn_scalar"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping"),
        ({"rope_parameters": {SLIDING: {"rope_theta": 0}}}, "rope_theta"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(change, message, tmp_path):
    folder = make_tiny_model(tmp_path, tiny_config())
    change_config(folder, **change)
    with pytest.raises(ModelLoadError, match=message):
        check_checkpoint(folder)
