import pytest

from rayinfer.models.language_model_config import language_model_config


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
