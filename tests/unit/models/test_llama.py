"""Logits beside those of transformers, for every shape that a Llama checkpoint may have."""

import json

import pytest
import torch
from safetensors.torch import load_file

from decoder_runs import DecoderRun, transformers_logits
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.llama import LlamaForCausalLM
from rayinfer.models.model_config import read_model_config
from tiny_models import make_tiny_llama, save_weights

TOKENS = [(7 * i * i + 3 * i + 11) % 384 for i in range(60)]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES = {
    "grouped queries": {},
    "untied": {"tie": False},
    "one head of keys": {"kv_heads": 1},
    "as many heads of keys": {"kv_heads": 4},
    "odd number of heads": {"hidden": 60, "heads": 5, "kv_heads": 5},
    "odd groups": {"hidden": 72, "heads": 9, "kv_heads": 3},
    "head width of its own": {"head_dim": 32},
    "attention biases": {"attention_bias": True},
    "feed-forward biases": {"mlp_bias": True, "tie": False},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "another rope base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "sharded": {"shards": 3},
    "odd vocabulary": {"vocab_size": 387},
    "another epsilon": {"rms_norm_eps": 1e-3},
    "one layer": {"layers": 1},
}


def with_random_biases(folder):
    # transformers starts biases and norms at 0 and 1, which would hide their loss.
    weights = load_file(folder / "model.safetensors")
    noise = torch.Generator().manual_seed(5)
    for name, weight in weights.items():
        if name.endswith("bias") or "norm" in name:
            weight += 0.3 * torch.randn(weight.shape, generator=noise)
    save_weights(folder, weights)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_those_of_transformers_in_prefill_chunks_and_decoding(shape, tmp_path):
    folder = make_tiny_llama(tmp_path, **SHAPES[shape])
    if shape != "sharded":
        with_random_biases(folder)
    wanted = transformers_logits(folder, TOKENS)
    run = DecoderRun(folder)
    (prefill,) = run.feed((0, TOKENS))
    torch.testing.assert_close(prefill, wanted, atol=1e-4, rtol=1e-4)
    chunks = [run.feed((1, TOKENS[start : start + 13]))[0] for start in range(0, 52, 13)]
    decoded = [run.feed((1, [token_id]))[0] for token_id in TOKENS[52:]]
    torch.testing.assert_close(torch.cat(chunks + decoded), wanted, atol=1e-4, rtol=1e-4)


def test_sequences_of_one_batch_do_not_see_each_other(tmp_path):
    folder = make_tiny_llama(tmp_path)
    run = DecoderRun(folder)
    other = TOKENS[::-1]
    run.feed((0, TOKENS[:20]))
    mixed = run.feed((1, other[:9]), (0, TOKENS[20:21]), (2, TOKENS[5:11]))
    wanted = [
        transformers_logits(folder, other[:9]),
        transformers_logits(folder, TOKENS[:21])[20:],
        transformers_logits(folder, TOKENS[5:11]),
    ]
    for got, want in zip(mixed, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("settings", [{"type": "linear", "factor": 3.0}, LLAMA3 | {"type": "llama3"}], ids=str)
def test_the_old_spelling_of_rope_means_the_same(settings, tmp_path):
    settings = {name: value for name, value in settings.items() if name != "rope_type"}
    new = {"rope_theta": 20000.0} | settings | {"rope_type": settings["type"]}
    del new["type"]
    folder = make_tiny_llama(tmp_path, rope_parameters=new)
    wanted = transformers_logits(folder, TOKENS)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = {name: value for name, value in settings.items() if name != "rope_theta"}
    (folder / "config.json").write_text(json.dumps(config))
    (got,) = DecoderRun(folder).feed((0, TOKENS))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(dtype, tmp_path):
    folder = make_tiny_llama(tmp_path, dtype="bfloat16")
    exact = transformers_logits(folder, TOKENS)
    (got,) = DecoderRun(folder, dtype).feed((0, TOKENS))
    theirs = transformers_logits(folder, TOKENS, dtype)
    assert got.dtype == dtype
    # No further from the exact logits than transformers' own half-precision logits are, give or take.
    assert (got.float() - exact).abs().mean() < 1.5 * (theirs.float() - exact).abs().mean()


def test_old_checkpoints_may_carry_rotary_tables_and_tied_ones_a_copy_of_the_head(tmp_path):
    folder = make_tiny_llama(tmp_path)
    wanted = transformers_logits(folder, TOKENS)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_weights(folder, weights)
    (got,) = DecoderRun(folder).feed((0, TOKENS))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "'gelu'"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}},
            "'yarn'.*default, linear, llama3",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
    ids=str,
)
def test_what_the_layers_cannot_do_is_refused_by_name(change, message, tmp_path):
    folder = make_tiny_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedArchitecture, match=message):
        LlamaForCausalLM(read_model_config(folder))
