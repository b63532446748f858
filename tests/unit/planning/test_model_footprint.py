import pytest
import torch

from rayinfer.errors import ConfigError, ModelLoadError, ModelNotFound
from rayinfer.models.loader import load_decoder
from rayinfer.planning.model_footprint import footprint_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_the_counts_are_those_of_the_loaded_model(tmp_path):
    folder = make_tiny_llama(tmp_path / "tiny")
    decoder = load_decoder(folder, torch.float32, torch.device("cpu"))
    footprint = footprint_of(str(folder), dtype="float32")
    num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
    assert footprint.weight_bytes == 4 * num_parameters
    assert footprint.layer_parameters + footprint.head_parameters + footprint.other_parameters == num_parameters
    assert footprint_of(str(folder / "config.json"), dtype="float32").weight_bytes == footprint.weight_bytes


def test_a_known_shape_has_the_size_of_its_data_sheet():
    footprint = footprint_of("Qwen3-8B")
    assert footprint.weight_bytes / 2 == pytest.approx(8.19e9, rel=0.002)
    assert footprint.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2
    assert footprint_of("Qwen3-8B", kv_cache_dtype="fp8").kv_bytes_per_token == footprint.kv_bytes_per_token / 2
    assert footprint_of("Qwen3-8B", quantization="fp8").weight_bytes < 0.6 * footprint.weight_bytes


def test_experts_that_a_token_does_not_pass_are_kept_but_not_read(tmp_path):
    (tmp_path / "config.json").write_text(MIXTRAL)
    footprint = footprint_of(str(tmp_path))
    assert footprint.weight_bytes / 2 == pytest.approx(46.7e9, rel=0.002)
    assert (footprint.active_layer_parameters + 2 * footprint.head_parameters) == pytest.approx(12.9e9, rel=0.005)


def test_models_without_a_plan_are_refused(tmp_path):
    with pytest.raises(ModelNotFound):
        footprint_of("no-such-model")
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises((ConfigError, ModelLoadError)):
        footprint_of(str(tmp_path))


MIXTRAL = """{"architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
 "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "num_local_experts": 8,
 "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768, "dtype": "bfloat16",
 "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "tie_word_embeddings": false, "model_type": "mixtral"}"""
