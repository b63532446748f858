import json

import pytest

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.model_config import language_model_config, read_model_config

RAW = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def read(folder, raw, generation=None):
    (folder / "config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(folder)


def test_a_plain_config_is_read_with_llamas_defaults(tmp_path):
    config = read(tmp_path, RAW)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers) == (384, 64, 128, 2)
    assert config.rope == {"rope_theta": 10000.0, "rope_type": "default"}
    assert not config.attention_bias
    assert not config.tie_word_embeddings
    assert (config.hidden_act, config.dtype, config.rms_norm_eps) == ("silu", "float32", 1e-5)


def test_heads_of_keys_default_to_all_heads(tmp_path):
    assert read(tmp_path, RAW | {"num_key_value_heads": None}).num_kv_heads == 4


@pytest.mark.parametrize("field_name", ["dtype", "torch_dtype"])
def test_the_checkpoints_dtype_has_two_field_names(field_name, tmp_path):
    assert read(tmp_path, RAW | {field_name: "bfloat16"}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("eos", "generation", "wanted"),
    [
        (2, None, (2,)),
        ([1, 2], None, (1, 2)),
        (None, None, ()),
        (2, {"eos_token_id": [5, 6]}, (5, 6)),
        (2, {"eos_token_id": 0}, (0,)),
        (2, {"temperature": 0.6}, (2,)),
    ],
)
def test_end_tokens_come_from_the_generation_config_first(eos, generation, wanted, tmp_path):
    assert read(tmp_path, RAW | {"eos_token_id": eos}, generation).eos_token_ids == wanted


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "dynamic", "factor": 2.5}, 1280),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 512),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, 512),
        ({"rope_type": "default"}, 512),
    ],
    ids=str,
)
def test_a_rotary_scaling_may_make_room_for_longer_sequences(rope, longest, tmp_path):
    config = read(tmp_path, RAW | {"rope_parameters": rope})
    assert (config.max_position_embeddings, config.longest_sequence) == (512, longest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size|many"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 66}, "hidden_size"),
        ({"head_dim": 15}, "head_dim"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"eos_token_id": "two"}, "two"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps .*'small'"),
        ({"attention_bias": "false"}, "attention_bias .*'false'"),
        ({"mlp_bias": 1}, "mlp_bias .*1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings .*'no'"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_with_its_file(change, message, tmp_path):
    with pytest.raises(ModelLoadError, match=message) as caught:
        read(tmp_path, RAW | change)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"])
def test_a_missing_field_is_named(field, tmp_path):
    with pytest.raises(ModelLoadError, match=field):
        read(tmp_path, {name: value for name, value in RAW.items() if name != field})


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_file_that_is_no_json_object_is_named(text, tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read(tmp_path, text)


def test_a_broken_generation_config_is_named(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        read(tmp_path, RAW)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json: no such file"):
        read_model_config(tmp_path)


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM"])
def test_a_config_without_an_architecture_is_refused(architectures, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=r"config\.json"):
        read(tmp_path, RAW | {"architectures": architectures})


def test_an_unknown_architecture_is_refused_before_its_fields_are_read(tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=r"'MambaForCausalLM'.*LlamaForCausalLM"):
        read(tmp_path, {"architectures": ["MambaForCausalLM"], "d_model": 64})


def test_a_config_of_one_part_is_left_as_it_is():
    raw = {"model_type": "llama", "hidden_size": 64, "sliding_window": None}
    assert language_model_config(raw) == raw


def test_the_text_part_takes_from_the_whole_what_is_said_for_all_parts():
    part = {"model_type": "llama", "hidden_size": 64, "dtype": "float32", "eos_token_id": None}
    raw = {"text_config": part, "hidden_size": 3, "dtype": "bfloat16", "eos_token_id": [1, 106]}
    assert language_model_config(raw) == part | {"eos_token_id": [1, 106]}


def test_what_gemma_leaves_out_is_filled_in():
    # As published with gemma-3-4b-it.
    part = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    filled = language_model_config({"text_config": part, "torch_dtype": "bfloat16"})
    assert part.items() <= filled.items()
    assert (filled["num_attention_heads"], filled["num_key_value_heads"], filled["head_dim"]) == (8, 4, 256)
    assert (filled["vocab_size"], filled["max_position_embeddings"]) == (262_208, 131_072)
    assert filled["torch_dtype"] == "bfloat16"


def test_what_gemma_says_itself_is_kept():
    part = {"model_type": "gemma3_text", "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}
    assert part.items() <= language_model_config({"text_config": part}).items()


def test_a_part_that_is_no_object_is_refused_by_name():
    with pytest.raises(ValueError, match="text_config must be an object, got 'gemma'"):
        language_model_config({"text_config": "gemma"})
