import pytest

from rayinfer.errors import ConfigError
from rayinfer.sampling_defaults import sampling_defaults

PUBLISHED = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.05,
    "max_new_tokens": 300,
}


def test_every_sampling_key_becomes_a_default():
    expected = {**PUBLISHED, "max_tokens": 300}
    del expected["max_new_tokens"]
    assert sampling_defaults(PUBLISHED, "file") == expected


def test_other_keys_and_nulls_have_no_effect():
    others = {"do_sample": False, "eos_token_id": [1], "max_tokens": 5, "num_beams": "many", "temperature": None}
    assert sampling_defaults(others, "file") == {}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("temperature", 3.5, r"\[0, 2\], got 3\.5"),
        ("temperature", float("nan"), "in"),
        ("temperature", True, "got True"),
        ("top_p", "0.9", "in"),
        ("top_p", 0, "in"),
        ("top_k", 1.5, "an integer"),
        ("min_p", [], "in"),
        ("repetition_penalty", -1, "in"),
        ("max_new_tokens", 0, "at least 1, got 0"),
        ("max_new_tokens", "long", "an integer"),
    ],
)
def test_a_wrong_value_is_refused_with_its_source_and_key(key, value, said):
    with pytest.raises(ConfigError, match=rf"^a/generation_config\.json: {key} .*{said}"):
        sampling_defaults(PUBLISHED | {key: value}, "a/generation_config.json")
