import pytest
import torch
from transformers import GraniteConfig, GraniteMoeHybridConfig

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import (
    PROMPT,
    DecoderRun,
    assert_decodes_like_transformers,
    num_decoded_of,
    transformers_logits,
)
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.15,
    "logits_scaling": 8.0,
}
GRANITE_4 = {
    "num_local_experts": 0,
    "shared_intermediate_size": 72,
    "layer_types": ["attention"] * 3,
    "position_embedding_type": "rope",
    "mamba_n_heads": 6,
}
VARIATIONS = {
    "tied": {"tie_word_embeddings": True},
    "untied": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "a large epsilon": {"rms_norm_eps": 1e-2},
    "an integer multiplier": {"embedding_multiplier": 12, "residual_multiplier": 3},
}
GRANITE_4_VARIATIONS = {
    "rotary positions": {},
    "no positions": {"position_embedding_type": "nope"},
    "no word about positions": {"position_embedding_type": None},
    "attention biases, tied": {"attention_bias": True, "tie_word_embeddings": True},
}


def tiny_granite(folder, **settings):
    return make_tiny_model(folder, GraniteConfig(**SHAPE | MULTIPLIERS | settings))


def tiny_granite_4(folder, **settings):
    return make_tiny_model(folder, GraniteMoeHybridConfig(**SHAPE | MULTIPLIERS | GRANITE_4 | settings))


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_granite_decodes_like_transformers(variation, tmp_path):
    folder = tiny_granite(tmp_path, **VARIATIONS[variation])
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, VARIATIONS))


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_a_multiplier_that_is_left_out_is_one(multiplier, tmp_path):
    folder = tiny_granite(tmp_path, **{multiplier: 1.0})
    change_config(folder, without=(multiplier,))
    assert_decodes_like_transformers(folder, num_decoded=2)


@pytest.mark.parametrize("variation", GRANITE_4_VARIATIONS)
def test_a_dense_granite_4_decodes_like_transformers(variation, tmp_path):
    folder = tiny_granite_4(tmp_path, **GRANITE_4_VARIATIONS[variation])
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, GRANITE_4_VARIATIONS))


@pytest.mark.parametrize("tiny", [tiny_granite, tiny_granite_4])
def test_the_layers_run_as_one_operation_with_the_compiled_kernels(tiny, tmp_path, compiled_kernels):
    folder = tiny(tmp_path)
    assert DecoderRun(folder).decoder.is_stacked
    assert_decodes_like_transformers(folder)


def test_states_that_are_read_of_a_layer_are_not_divided(tmp_path):
    states = []
    for name, settings in {"one": {"residual_multiplier": 1.0}, "two": {"residual_multiplier": 2.0}}.items():
        run = DecoderRun(tiny_granite(tmp_path / name, **settings))
        run.decoder.read_states([0])
        run.feed((0, [5, 6, 7]))
        states.append(run.decoder.states_read)
    torch.testing.assert_close(states[1], states[0])  # layer 0 reads the embeddings


def test_bfloat16_stays_as_close_to_the_exact_logits_as_transformers_does(tmp_path):
    folder = tiny_granite(tmp_path, dtype="bfloat16")
    exact = transformers_logits(folder, PROMPT)
    theirs = transformers_logits(folder, PROMPT, torch.bfloat16)
    (got,) = DecoderRun(folder, torch.bfloat16).feed((0, PROMPT))
    assert (got.float() - exact).abs().mean() < 1.2 * (theirs.float() - exact).abs().mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["attention", "mamba", "attention"]}, "layer type 'mamba'"),
        ({"layer_types": ["attention", "linear_attention", "attention"]}, "layer type 'linear_attention'"),
        ({"num_local_experts": 8}, "num_local_experts 8"),
        ({"num_local_experts": None}, "num_local_experts"),
        ({"position_embedding_type": "alibi"}, "'alibi'"),
        ({"hidden_act": "relu"}, "'relu'"),
    ],
    ids=str,
)
def test_a_granite_4_that_is_not_dense_attention_is_refused_by_name(change, message, tmp_path):
    folder = change_config(tiny_granite_4(tmp_path), **change)
    with pytest.raises(UnsupportedArchitecture, match=message):
        check_checkpoint(folder)


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_a_wrong_multiplier_is_named(name, tmp_path):
    folder = change_config(tiny_granite(tmp_path), **{name: 0})
    with pytest.raises(ModelLoadError, match=name):
        check_checkpoint(folder)
