import copy

import pytest
from transformers import AutoConfig

from rayinfer.models.rope_settings import read_rope

RAW = {"max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "factor": 2.0}


def test_positions_turn_unscaled_unless_the_config_says_otherwise():
    assert read_rope({}, 8) == {"rope_theta": 10000.0, "rope_type": "default"}


def test_newer_settings_go_before_older_ones():
    raw = RAW | {
        "rope_theta": 2.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9.0},
    }
    assert read_rope(raw, 8) | {"rope_theta": 9.0, "rope_type": "linear", "factor": 4.0} == read_rope(raw, 8)


def test_a_kind_of_layer_may_have_settings_of_its_own():
    raw = RAW | {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}
    assert read_rope(raw, 8, layer_type="full_attention")["rope_theta"] == 1e6
    assert read_rope(raw, 8, layer_type="sliding_attention")["rope_theta"] == 1e4


@pytest.mark.parametrize("old", [{"type": "su"}, {"type": "yarn"}, {"type": "longrope"}], ids=str)
def test_longrope_had_other_names(old):
    factors = {name: LONGROPE[name] for name in ("short_factor", "long_factor")}
    assert read_rope(RAW | {"rope_scaling": old | factors}, 8)["rope_type"] == "longrope"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "raw",
    [
        {"rope_scaling": LLAMA3},
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}},
        {"rope_scaling": YARN | {"original_max_position_embeddings": 64}, "original_max_position_embeddings": 128},
        {"rope_scaling": YARN, "rope_theta": 1e6},
        {"rope_parameters": YARN | {"rope_theta": 1e5}, "rope_theta": 1e6},
        {"rope_scaling": YARN | {"type": "linear"}},
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 64}},
    ],
    ids=str,
)
def test_the_fields_are_gathered_as_transformers_gathers_them(raw):
    theirs = AutoConfig.for_model("llama", **RAW, **copy.deepcopy(raw))  # it changes what it is given
    theirs.standardize_rope_params()
    wanted = {name: value for name, value in theirs.rope_parameters.items() if name != "type"}
    ours = read_rope(RAW | raw, 32)
    assert {name: ours[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'"),
        ({"rope_theta": "ten thousand"}, "rope_theta.*'ten thousand'"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor.*0"),
        ({"rope_scaling": {"type": "dynamic", "factor": None}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": "4"}}, "high_freq_factor.*'4'"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor 1.0 must be above low_freq_factor"),
        ({"rope_scaling": YARN | {"factor": -1.0}}, "factor.*-1"),
        ({"rope_scaling": YARN | {"beta_fast": "x"}}, "beta_fast.*'x'"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta.*above 1"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0.5}}, "original_max_position_embeddings.*0.5"),
        ({"rope_scaling": LONGROPE | {"original_max_position_embeddings": 1}}, "original_max_position_embeddings.*1"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 3}}, "long_factor must be a list of 4 numbers"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0, 0, 1, 1]}}, "short_factor.*0"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0] * 4}}, "short_factor"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor.*1.5"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor.*0.1"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor.*0.4"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "partial_rotary_factor": 0.25}, "at least 4.*0.25"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(raw, message):
    with pytest.raises((KeyError, ValueError), match=message):
        read_rope(RAW | raw, 8)
