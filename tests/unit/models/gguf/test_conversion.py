import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.checkpoints.model_folder import check_model_folder
from rayinfer.models.gguf.conversion import convert_gguf
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_gguf import write_tiny_gguf

FIELDS_THAT_MATTER = (
    "architectures", "attention_bias", "bos_token_id", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
    "intermediate_size", "max_position_embeddings", "mlp_bias", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "pad_token_id", "rms_norm_eps", "tie_word_embeddings", "vocab_size",
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("original"), tie=False, rms_norm_eps=1e-5)


@pytest.fixture(scope="module")
def converted(original, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    convert_gguf(write_tiny_gguf(original, folder / "tiny.gguf", quantized=False), folder / "model")
    return folder / "model"


def test_a_plain_file_gives_back_the_original_weights_exactly(original, converted):
    check_model_folder(converted)
    before, after = load_file(original / "model.safetensors"), load_file(converted / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_quantized_weights_are_unpacked_and_rounded_to_bfloat16(original, tmp_path):
    convert_gguf(write_tiny_gguf(original, tmp_path / "tiny.gguf"), tmp_path / "model")
    before, after = load_file(original / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    packed = gguf.quants.quantize(before[name].numpy(), gguf.GGMLQuantizationType.Q8_0)
    unpacked = torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
    assert torch.equal(after[name], unpacked.to(torch.bfloat16))
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    key = "model.layers.0.self_attn.k_proj.weight"
    assert torch.allclose(after[key].float(), before[key], atol=0.02)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_configuration_is_the_original_one(original, converted):
    before, after = AutoConfig.from_pretrained(original), AutoConfig.from_pretrained(converted)
    for field in FIELDS_THAT_MATTER:
        assert getattr(after, field) == getattr(before, field), field
    assert after.rope_parameters == before.rope_parameters


def test_transformers_computes_the_same_logits_from_the_converted_folder(original, converted):
    ids = torch.arange(20)[None]
    before = AutoModelForCausalLM.from_pretrained(original)(ids).logits
    after = AutoModelForCausalLM.from_pretrained(converted)(ids).logits
    assert torch.equal(after, before)


def test_tied_weights_are_stored_once(tmp_path):
    folder = make_tiny_llama(tmp_path / "tied", tie=True)
    convert_gguf(write_tiny_gguf(folder, tmp_path / "tied.gguf"), tmp_path / "model")
    assert "lm_head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["tie_word_embeddings"] is True


def test_the_chat_template_and_the_special_tokens_come_along(original, converted):
    before, after = AutoTokenizer.from_pretrained(original), AutoTokenizer.from_pretrained(converted)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    rendered = after.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert rendered == before.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert (after.bos_token_id, after.eos_token_id, after.pad_token_id) == (1, 2, 2)
    assert after.model_max_length == 512


def test_llama3_rotation_is_recognised_by_its_factors(tmp_path):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    folder = make_tiny_llama(tmp_path / "llama3", rope_parameters=rope, hidden=256, max_position_embeddings=65536)
    model = AutoModelForCausalLM.from_pretrained(folder)
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    convert_gguf(write_tiny_gguf(folder, tmp_path / "a.gguf", rope_factors=factors), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["rope_parameters"] == rope
    assert "rope_freqs.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs\.weight"):
        convert_gguf(write_tiny_gguf(folder, tmp_path / "b.gguf", rope_factors=factors[::-1].copy()), tmp_path / "no")


def test_another_architecture_is_refused_with_those_known(original, tmp_path):
    file = write_tiny_gguf(original, tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(UnsupportedArchitecture, match=r"other\.gguf: .*'mamba' is not supported; known: gemma3, llama"):
        convert_gguf(file, tmp_path / "model")


def test_a_tensor_without_a_place_is_named(original, tmp_path):
    file = write_tiny_gguf(original, tmp_path / "moe.gguf", extra_tensor="blk.0.ffn_gate_inp.weight")
    with pytest.raises(UnsupportedArchitecture, match=r"moe\.gguf: tensor 'blk.0.ffn_gate_inp.weight'"):
        convert_gguf(file, tmp_path / "model")


@pytest.mark.parametrize("num_bytes", [0, 3, 20, 400, 20_000, -100])
def test_a_truncated_file_is_refused_in_one_line(original, tmp_path, num_bytes):
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf", quantized=False)
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf") as refusal:
        convert_gguf(file, tmp_path / "model")
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "page.gguf").write_text("<html>" * 100)
    with pytest.raises(ModelLoadError, match=r"page\.gguf is no whole GGUF file"):
        convert_gguf(tmp_path / "page.gguf", tmp_path / "model")


def test_sampling_keys_become_keys_of_the_generation_config(original, tmp_path):
    sampling = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.1, "mirostat": 2}
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf", sampling=sampling)
    convert_gguf(file, tmp_path / "model", generation_config={"top_k": 5})
    written = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert {key: value for key, value in written.items() if not key.endswith("_token_id")} == {
        **{"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1}
    }
