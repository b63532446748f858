"""A tiny model of each architecture through the file that llama.cpp's converter would write, and back."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig, Phi3Config, Qwen2Config, Qwen3Config

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.gguf.conversion import convert_gguf
from support.golden.decoder_runs import CLOSE, PROMPT, DecoderRun, transformers_logits
from support.tiny_models.tiny_checkpoints import make_tiny_model, save_tokenizer
from support.tiny_models.tiny_gguf import write_tiny_gguf

SHAPE = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 20}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 1.9, 2.3],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 7.0, 11.0],
}
# A function for each: transformers changes what its configurations are given.
MODELS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama with biases": lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen2, tied, with yarn": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True, rope_parameters=dict(YARN)),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=24),
    "qwen3 with yarn between other borders": lambda: Qwen3Config(
        **SHAPE, head_dim=24, rope_parameters=YARN | {"beta_fast": 16.0, "beta_slow": 2.0}
    ),
    "qwen3 with biases": lambda: Qwen3Config(**SHAPE, head_dim=24, attention_bias=True),
    "phi3": lambda: Phi3Config(**SHAPE, original_max_position_embeddings=256, sliding_window=20),
    "phi3 with longrope": lambda: Phi3Config(
        **SHAPE, original_max_position_embeddings=40, rope_parameters=dict(LONGROPE), tie_word_embeddings=True
    ),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE | {"num_hidden_layers": 7}, **GEMMA),
    "gemma3 with linear rope and capped logits": lambda: Gemma3TextConfig(
        **SHAPE | {"num_hidden_layers": 7}, **GEMMA, rope_parameters=GEMMA_ROPE, final_logit_softcapping=3.0
    ),
}


@pytest.fixture(params=MODELS)
def original(request, tmp_path):
    folder = make_tiny_model(tmp_path / "original", MODELS[request.param]())
    save_tokenizer(folder, SHAPE["vocab_size"])
    return request.param.partition(" ")[0].strip(","), folder


def test_a_converted_model_is_the_original_one(original, tmp_path):
    architecture, folder = original
    file = write_tiny_gguf(folder, tmp_path / "tiny.gguf", architecture=architecture, quantized=False)
    convert_gguf(file, tmp_path / "model")
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "model"))
    assert after.keys() == before.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    wanted = transformers_logits(folder, PROMPT)
    torch.testing.assert_close(transformers_logits(tmp_path / "model", PROMPT), wanted, **CLOSE)
    (got,) = DecoderRun(tmp_path / "model").feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_the_configuration_is_the_original_one(original, tmp_path):
    architecture, folder = original
    file = write_tiny_gguf(folder, tmp_path / "tiny.gguf", architecture=architecture, quantized=False)
    convert_gguf(file, tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    before, after = AutoConfig.from_pretrained(folder), AutoConfig.from_pretrained(tmp_path / "model")
    for field in written.keys() - {"eos_token_id", "head_dim"}:
        assert getattr(after, field) == getattr(before, field), field


def test_the_end_of_a_turn_ends_an_answer_too(tmp_path):
    folder = make_tiny_model(tmp_path / "original", MODELS["gemma3"]())
    save_tokenizer(folder, SHAPE["vocab_size"])
    convert_gguf(write_tiny_gguf(folder, tmp_path / "tiny.gguf", architecture="gemma3"), tmp_path / "model")
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 1]


def test_the_largest_gemma_3_scales_its_queries_as_the_file_does_not_say(tmp_path):
    shape = SHAPE | {"num_hidden_layers": 62, "intermediate_size": 32} | GEMMA | {"head_dim": 24}
    folder = make_tiny_model(tmp_path / "original", Gemma3TextConfig(**shape))
    save_tokenizer(folder, SHAPE["vocab_size"])
    convert_gguf(write_tiny_gguf(folder, tmp_path / "tiny.gguf", architecture="gemma3"), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["query_pre_attn_scalar"] == 64 // 4


def test_yarn_that_llama_cpp_amplifies_is_refused(tmp_path):
    folder = make_tiny_model(tmp_path / "original", MODELS["qwen2, tied, with yarn"]())
    save_tokenizer(folder, SHAPE["vocab_size"])
    file = write_tiny_gguf(folder, tmp_path / "tiny.gguf", architecture="qwen2", yarn_amplitude=1.25)
    with pytest.raises(UnsupportedArchitecture, match=r"tiny\.gguf: yarn with the amplitude 1\.25"):
        convert_gguf(file, tmp_path / "model")
