import pytest
import torch
from safetensors.torch import load_file
from transformers import GptOssConfig

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.gpt_oss import ClampedExperts
from rayinfer.models.loader import check_checkpoint
from support.golden.decoder_runs import (
    CLOSE,
    PROMPT,
    DecoderRun,
    assert_decodes_like_transformers,
    num_decoded_of,
    transformers_logits,
)
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_model, save_weights

SLIDING, GLOBAL = "sliding_attention", "full_attention"
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "swiglu_limit": 0.7,  # so that much is clamped
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 8.0, "original_max_position_embeddings": 32}
VARIATIONS = {
    "windows in every second layer": {},
    "windows as listed": {"layer_types": [GLOBAL, SLIDING, SLIDING]},
    "yarn as published": {"rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
    "another gain": {"swiglu_alpha": 0.5, "swiglu_limit": 7.0},
    "no attention biases": {"attention_bias": False},
    "tied": {"tie_word_embeddings": True},
}


def tiny(folder, **settings):
    return make_tiny_model(folder, GptOssConfig(**SHAPE | settings))


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_gpt_oss_decodes_like_transformers(variation, tmp_path):
    folder = tiny(tmp_path, **VARIATIONS[variation])
    weights = load_file(folder / "model.safetensors")
    for name in ("self_attn.sinks", "mlp.experts.gate_up_proj_bias", "mlp.router.bias"):
        assert weights[f"model.layers.0.{name}"].std() > 0.1
    assert_decodes_like_transformers(folder, num_decoded=num_decoded_of(variation, VARIATIONS))


def test_it_holds_with_the_compiled_kernels(tmp_path, compiled_kernels):
    assert_decodes_like_transformers(tiny(tmp_path))


def test_what_published_checkpoints_leave_out_is_as_usual(tmp_path):
    folder = tiny(tmp_path, swiglu_limit=7.0)
    change_config(folder, without=("layer_types", "swiglu_alpha", "swiglu_limit", "rms_norm_eps", "attention_bias"))
    assert_decodes_like_transformers(folder, num_decoded=4)


def test_a_row_has_the_same_bits_in_batches_of_any_size(compiled_kernels):
    experts = ClampedExperts(8, 20, 2, alpha=1.7, limit=7.0, is_transposed=False)
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([experts.gated(row[None]) for row in rows])
    for end in range(1, len(rows) + 1):
        assert torch.equal(experts.gated(rows[:end]), alone[:end])


def test_bfloat16_stays_as_close_to_the_exact_logits_as_transformers_does(tmp_path):
    folder = tiny(tmp_path, dtype="bfloat16")
    exact = transformers_logits(folder, PROMPT)
    theirs = transformers_logits(folder, PROMPT, torch.bfloat16)
    (got,) = DecoderRun(folder, torch.bfloat16).feed((0, PROMPT))
    assert (got.float() - exact).abs().mean() < 1.2 * (theirs.float() - exact).abs().mean()


def test_mxfp4_experts_as_published_are_those_of_the_dequantized_checkpoint(tmp_path):
    folder = tiny(tmp_path, hidden_size=64, intermediate_size=32)
    weights, blocks = load_file(folder / "model.safetensors"), {}
    chance = torch.Generator().manual_seed(1)
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))  # e2m1
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        num_experts, num_inputs, num_outputs = weights[name].shape
        shape = (num_experts, num_outputs, num_inputs // 32, 32)
        codes = torch.randint(16, shape, generator=chance)
        exponents = torch.randint(123, 126, shape[:-1], generator=chance)  # e8m0: 2 ** (number - 127)
        exact = (numbers[codes] * torch.exp2(exponents - 127.0)[..., None]).flatten(2)
        weights[name] = exact.mT.contiguous()
        blocks[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
        blocks[f"{name}_scales"] = exponents.to(torch.uint8)
    save_weights(folder, weights)
    (wanted,) = DecoderRun(folder).feed((0, PROMPT))
    torch.testing.assert_close(wanted, transformers_logits(folder, PROMPT), **CLOSE)
    kept = {name: weight for name, weight in weights.items() if f"{name}_blocks" not in blocks}
    save_weights(folder, kept | blocks)
    change_config(folder, quantization_config={"quant_method": "mxfp4"})
    (got,) = DecoderRun(folder).feed((0, PROMPT))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_experts_per_tok": 6}, ModelLoadError, "num_experts_per_tok 6"),
        ({"layer_types": [SLIDING]}, ModelLoadError, "layer_types"),
        ({"swiglu_limit": 0}, ModelLoadError, "swiglu_limit"),
        ({"hidden_act": "gelu"}, UnsupportedArchitecture, "'gelu'"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(change, error, message, tmp_path):
    folder = change_config(tiny(tmp_path), **change)
    with pytest.raises(error, match=message):
        check_checkpoint(folder)
