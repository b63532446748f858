"""Every scaling beside transformers' own function for it."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rayinfer.layers.rope_scaling import SCALINGS, rotation

HEAD_DIM, MAX_POSITIONS = 32, 1024
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1 + 0.1 * i for i in range(16)],
    "long_factor": [1 + 0.7 * i for i in range(16)],
    "original_max_position_embeddings": 256,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
HALF = {"partial_rotary_factor": 0.5}
SETTINGS = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "linear over half a head": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0} | HALF,
    "dynamic": DYNAMIC,
    "dynamic over half a head": DYNAMIC | HALF,
    "llama3": LLAMA3,
    "llama3 over half a head": LLAMA3 | HALF,
    "yarn": YARN,
    "yarn over half a head": YARN | HALF,
    "yarn without truncation": YARN | {"truncate": False},
    "yarn with its own ramp": YARN | {"beta_fast": 16, "beta_slow": 2},
    "yarn with a ramp of no width": YARN | {"beta_fast": 8.0, "beta_slow": 8.0, "truncate": False},
    "yarn with its own amplitude": YARN | {"attention_factor": 1.25},
    "yarn with DeepSeek's amplitude": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn with half of DeepSeek's amplitude": YARN | {"mscale": 0.7, "mscale_all_dim": 0},
    "yarn whose factor follows from the lengths": YARN | {"factor": None},
    "yarn of factor 1": YARN | {"factor": 1.0},
    "longrope": LONGROPE,
    "longrope with its own factor": LONGROPE | {"factor": 16.0},
    "longrope with its own amplitude": LONGROPE | {"attention_factor": 1.1},
    "longrope of factor 1": LONGROPE | {"factor": 1.0},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [64, 256, 257, 1024, 3000])
@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies_and_amplitude_are_those_of_transformers(name, length):
    rope = SETTINGS[name]
    theirs = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={key: value for key, value in rope.items() if value is not None or key == "factor"},
    )
    wanted, amplitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, torch.device("cpu"), seq_len=length)
    got = rotation(HEAD_DIM, rope | {"max_position_embeddings": MAX_POSITIONS}, length)
    torch.testing.assert_close(got.frequencies, wanted)
    assert got.amplitude == pytest.approx(amplitude)


def test_there_is_a_case_for_every_scaling():
    assert {rope["rope_type"] for rope in SETTINGS.values()} | {"default"} == set(SCALINGS)


def test_unscaled_frequencies_fall_from_one_by_powers_of_the_base():
    got = rotation(8, {"rope_theta": 10000.0}, 10)
    torch.testing.assert_close(got.frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    assert got.amplitude == 1


def test_llama3_keeps_short_waves_slows_long_ones_and_blends_between():
    rope = LLAMA3 | {"original_max_position_embeddings": 8192}
    default, scaled = (rotation(128, each, 10).frequencies for each in ({"rope_theta": 500000.0}, rope))
    wavelengths = 2 * math.pi / default
    is_short, is_long = wavelengths < 8192 / 4, wavelengths > 8192
    assert torch.equal(scaled[is_short], default[is_short])
    torch.testing.assert_close(scaled[is_long], default[is_long] / 8)
    between = ~is_short & ~is_long
    assert between.any()
    assert ((scaled < default) & (scaled > default / 8))[between].all()


def test_dynamic_scaling_leaves_the_original_context_alone():
    rope = DYNAMIC | {"max_position_embeddings": 100}
    default, within, beyond = (
        rotation(16, settings, length).frequencies
        for settings, length in (({"rope_theta": 10000.0}, 1), (rope, 100), (rope, 101))
    )
    assert torch.equal(within, default)
    assert (beyond[1:] < default[1:]).all()
