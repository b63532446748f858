import math

import pytest
import torch

from rayinfer.layers.rotary_embedding import RotaryEmbedding, inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_frequencies_fall_from_one_by_powers_of_the_base():
    frequencies = inverse_frequencies(8, {"rope_type": "default", "rope_theta": 10000.0})
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))


def test_linear_scaling_slows_all_of_them():
    default = inverse_frequencies(16, {"rope_type": "default"})
    assert torch.equal(inverse_frequencies(16, {"rope_type": "linear", "factor": 4.0}), default / 4)


def test_llama3_scaling_keeps_short_waves_slows_long_ones_and_blends_between():
    default = inverse_frequencies(128, {"rope_theta": 500000.0})
    scaled = inverse_frequencies(128, LLAMA3)
    wavelengths = 2 * math.pi / default
    is_short, is_long = wavelengths < 8192 / 4, wavelengths > 8192
    assert torch.equal(scaled[is_short], default[is_short])
    torch.testing.assert_close(scaled[is_long], default[is_long] / 8)
    between = ~is_short & ~is_long
    assert between.any()
    assert ((scaled < default) & (scaled > default / 8))[between].all()


@pytest.mark.parametrize("distance", [0, 1, 17])
def test_scores_depend_on_the_distance_of_positions_only(distance):
    rotary = RotaryEmbedding(16, 64, {"rope_type": "default"})
    rotary.prepare(torch.float32, torch.device("cpu"))
    noise = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 3, 16, generator=noise)

    def score(position):
        turned = [
            rotary.forward(x, rotary.angles(torch.tensor([at])))
            for x, at in ((query, position), (key, position - distance))
        ]
        return (turned[0] * turned[1]).sum(-1)

    torch.testing.assert_close(score(20), score(55), atol=1e-4, rtol=1e-4)


def test_position_zero_turns_nothing():
    rotary = RotaryEmbedding(16, 64, {})
    rotary.prepare(torch.float32, torch.device("cpu"), max_positions=1)
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(rotary.forward(x.clone(), rotary.angles(torch.tensor([0]))), x)
