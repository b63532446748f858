"""Logits and tokens beside those of transformers, for every shape that a Llama checkpoint may have."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.architectures.llama import LlamaForCausalLM
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import CLOSE, PROMPT, DecoderRun, assert_decodes_like_transformers, transformers_logits
from support.tiny_models.tiny_checkpoints import make_tiny_llama, make_tiny_model, save_weights

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SHAPES = {
    "grouped queries": {},
    "tied": {"tie_word_embeddings": True},
    "one head of keys": {"num_key_value_heads": 1},
    "as many heads of keys": {"num_key_value_heads": 4},
    "odd number of heads": {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 5},
    "odd groups, as SmolLM2 has them": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "head width of its own": {"head_dim": 32},
    "attention biases": {"attention_bias": True},
    "feed-forward biases": {"mlp_bias": True},
    "gate of another kind": {"hidden_act": "gelu_pytorch_tanh"},
    "odd vocabulary": {"vocab_size": 101},
    "another epsilon": {"rms_norm_eps": 1e-3},
    "one layer": {"num_hidden_layers": 1},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1 + 0.1 * i for i in range(8)],
    "long_factor": [1 + 0.7 * i for i in range(8)],
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES = {
    "another base": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic, within its original context": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": YARN,
    "yarn with DeepSeek's amplitude": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "longrope, within its original context": LONGROPE,
    "longrope, beyond its original context": LONGROPE | {"original_max_position_embeddings": 40, "factor": 8.0},
    "llama3": LLAMA3,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_llama_of_any_shape_decodes_like_transformers(shape, tmp_path):
    assert_decodes_like_transformers(make_tiny_model(tmp_path, LlamaConfig(**(SHAPE | SHAPES[shape]))))


@pytest.mark.parametrize("name", ROPES)
def test_a_llama_with_any_rotary_scaling_decodes_like_transformers(name, tmp_path):
    rope = {"rope_theta": 10000.0} | ROPES[name]
    assert_decodes_like_transformers(make_tiny_model(tmp_path, LlamaConfig(**SHAPE, rope_parameters=rope)))


def test_dynamic_scaling_turns_as_transformers_does_in_a_sequence_of_the_longest_length(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}
    folder = make_tiny_model(tmp_path, LlamaConfig(**SHAPE | {"max_position_embeddings": 20}, rope_parameters=rope))
    wanted = transformers_logits(folder, PROMPT)
    run = DecoderRun(folder, longest_sequence=len(PROMPT))
    assert run.decoder.config.longest_sequence == len(PROMPT)
    chunks = [run.feed((0, PROMPT[start : start + 13]))[0] for start in range(0, len(PROMPT), 13)]
    torch.testing.assert_close(torch.cat(chunks), wanted, **CLOSE)


def test_a_checkpoint_may_be_cut_into_shards(tmp_path):
    assert_decodes_like_transformers(make_tiny_llama(tmp_path, shards=3))


def test_sequences_of_one_batch_do_not_see_each_other(tmp_path):
    folder = make_tiny_model(tmp_path, LlamaConfig(**SHAPE))
    run = DecoderRun(folder)
    other = PROMPT[::-1]
    run.feed((0, PROMPT[:20]))
    mixed = run.feed((1, other[:9]), (0, PROMPT[20:21]), (2, PROMPT[5:11]))
    wanted = [
        transformers_logits(folder, other[:9]),
        transformers_logits(folder, PROMPT[:21])[20:],
        transformers_logits(folder, PROMPT[5:11]),
    ]
    for got, want in zip(mixed, wanted, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 3.0}, YARN, LLAMA3], ids=str)
def test_old_rope_fields_are_read(rope, tmp_path):
    folder = make_tiny_model(tmp_path, LlamaConfig(**SHAPE, rope_parameters=rope | {"rope_theta": 20000.0}))
    wanted = transformers_logits(folder, PROMPT)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    config["rope_theta"] = 20000.0
    config["rope_scaling"] = {("type" if name == "rope_type" else name): value for name, value in rope.items()}
    (folder / "config.json").write_text(json.dumps(config))
    (got,) = DecoderRun(folder).feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(dtype, tmp_path):
    folder = make_tiny_llama(tmp_path, dtype="bfloat16")
    exact = transformers_logits(folder, PROMPT)
    (got,) = DecoderRun(folder, dtype).feed((0, PROMPT))
    theirs = transformers_logits(folder, PROMPT, dtype)
    assert got.dtype == dtype
    # No further from the exact logits than transformers' own half-precision logits are, give or take.
    assert (got.float() - exact).abs().mean() < 1.5 * (theirs.float() - exact).abs().mean()


def test_old_checkpoints_may_carry_rotary_tables_and_tied_ones_a_copy_of_the_head(tmp_path):
    folder = make_tiny_model(tmp_path, LlamaConfig(**SHAPE, tie_word_embeddings=True))
    wanted = transformers_logits(folder, PROMPT)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_weights(folder, weights)
    (got,) = DecoderRun(folder).feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu2"}, r"'relu2'.*silu"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, r"'mrope'.*default, linear, dynamic, yarn"),
    ],
    ids=str,
)
def test_what_the_layers_cannot_do_is_refused_by_name(change, message, tmp_path):
    folder = make_tiny_model(tmp_path, LlamaConfig(**SHAPE))
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedArchitecture, match=message):
        LlamaForCausalLM(read_model_config(folder))
