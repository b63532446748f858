"""Logits beside those of transformers, for what a Mixtral checkpoint may be."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MixtralConfig

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import PROMPT, DecoderRun, assert_decodes_like_transformers
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model, save_weights

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SHAPES = {
    "8 experts, two per token": {},
    "tied": {"tie_word_embeddings": True},
    "one expert per token": {"num_experts_per_tok": 1},
    "all experts for each token": {"num_local_experts": 3, "num_experts_per_tok": 3},
    "many experts of an odd width": {"num_local_experts": 30, "num_experts_per_tok": 5, "intermediate_size": 33},
    "one head of keys": {"num_key_value_heads": 1},
    "as many heads of keys, an odd number": {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 5},
    "head width of its own": {"head_dim": 16},
    "sliding window": {"sliding_window": 17},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, MixtralConfig(**TINY | SHAPES[shape])))


def test_it_decodes_like_transformers_with_the_compiled_kernels(tmp_path, compiled_kernels):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, MixtralConfig(**TINY)))


def test_experts_may_be_stored_all_in_one_tensor(tmp_path):
    single = make_tiny_model(tmp_path / "single", MixtralConfig(**TINY))
    fused = tmp_path / "fused"
    AutoModelForCausalLM.from_pretrained(single).save_pretrained(fused, save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(fused / "model.safetensors")
    assert torch.equal(DecoderRun(fused).feed((0, PROMPT))[0], DecoderRun(single).feed((0, PROMPT))[0])


def test_logits_of_a_sequence_are_the_same_to_the_bit_alone_and_beside_others(tmp_path, compiled_kernels):
    run = DecoderRun(make_tiny_model(tmp_path, MixtralConfig(**TINY)))
    (alone,) = run.feed((0, PROMPT))
    before, within, after = run.feed((1, PROMPT[5:18]), (2, PROMPT[:50]), (3, PROMPT[::-1]))
    assert torch.equal(within, alone[:50])
    (decoded, *_) = run.feed((2, PROMPT[50:51]), *((4 + i, PROMPT[i : i + 2]) for i in range(7)))
    assert torch.equal(decoded, alone[50:51])
    assert len(before) == 13
    assert len(after) == 60


@pytest.mark.parametrize(
    "name", ["model.layers.1.block_sparse_moe.experts.7.w2.weight", "model.layers.0.block_sparse_moe.gate.weight"]
)
def test_a_missing_tensor_is_named_as_the_checkpoint_would(name, tmp_path):
    folder = make_tiny_model(tmp_path, MixtralConfig(**TINY))
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=f"the checkpoint lacks {name}$"):
        check_checkpoint(folder)


def test_an_expert_too_many_is_named(tmp_path):
    folder = make_tiny_model(tmp_path, MixtralConfig(**TINY))
    name = "model.layers.1.block_sparse_moe.experts.8.w1.weight"
    save_weights(folder, load_file(folder / "model.safetensors") | {name: torch.zeros(48, 32)})
    with pytest.raises(ModelLoadError, match=f"no parameter for tensor {name}"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden_act": "gelu"}, UnsupportedArchitecture, "hidden_act 'gelu'"),
        ({"num_experts_per_tok": 9}, ModelLoadError, r"config\.json.*num_experts_per_tok 9 .* 8 experts"),
        ({"num_experts_per_tok": 0}, ModelLoadError, "num_experts_per_tok must be a whole number above 0, got 0"),
        ({"num_local_experts": "many"}, ModelLoadError, "num_local_experts must be .* got 'many'"),
        ({"num_local_experts": None}, ModelLoadError, "num_local_experts"),
        ({"sliding_window": -1}, ModelLoadError, "sliding_window must be .* got -1"),
    ],
    ids=str,
)
def test_wrong_fields_are_named(change, error, message, tmp_path):
    folder = make_tiny_model(tmp_path, MixtralConfig(**TINY))
    change_config(folder, **change)
    with pytest.raises(error, match=message):
        check_checkpoint(folder)
