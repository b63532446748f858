import pytest
import torch

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.rotary_embedding import RotaryEmbedding

CPU = torch.device("cpu")


def prepared(rope, **lengths):
    rotary = RotaryEmbedding(16, 64, rope)
    rotary.prepare(torch.float32, CPU, **lengths)
    return rotary


def turned(rotary, x, position):
    return rotary.forward(x, rotary.angles(torch.tensor([position])))


@pytest.mark.parametrize("distance", [0, 1, 17])
def test_scores_depend_on_the_distance_of_positions_only(distance):
    rotary = prepared({"rope_type": "default"})
    query, key = torch.randn(2, 1, 3, 16, generator=torch.Generator().manual_seed(0))

    def score(position):
        return (turned(rotary, query, position) * turned(rotary, key, position - distance)).sum(-1)

    torch.testing.assert_close(score(20), score(55), atol=1e-4, rtol=1e-4)


def test_position_zero_turns_nothing():
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(turned(prepared({}, max_positions=1), x.clone(), 0), x)


def test_the_first_channels_turn_as_a_narrower_head_would_and_the_others_stay():
    x = torch.randn(1, 3, 16)
    narrow = RotaryEmbedding(12, 64, {})
    narrow.prepare(torch.float32, CPU)
    got = turned(prepared({"partial_rotary_factor": 0.75}), x, 9)
    assert torch.equal(got[..., :12], turned(narrow, x[..., :12], 9))
    assert torch.equal(got[..., 12:], x[..., 12:])


def test_the_amplitude_of_a_scaling_makes_turned_vectors_longer():
    x = torch.randn(1, 3, 16)
    yarn = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "original_max_position_embeddings": 16}
    torch.testing.assert_close(turned(prepared(yarn), x, 9).norm(dim=-1), 1.5 * x.norm(dim=-1))


def test_the_longest_sequence_decides_however_long_the_tables_are():
    x = torch.randn(1, 3, 16)
    rope = {"rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 64}
    short, long = prepared(rope, max_positions=32, longest_sequence=64), prepared(rope, longest_sequence=128)
    small_machine = prepared(rope, max_positions=32, longest_sequence=128)
    assert torch.equal(turned(short, x, 9), turned(prepared({}), x, 9))
    assert torch.equal(turned(small_machine, x, 9), turned(long, x, 9))
    assert not torch.equal(turned(short, x, 9), turned(long, x, 9))


def test_an_unknown_scaling_is_refused_with_a_list_of_the_known():
    known = "default, linear, dynamic, yarn, longrope, llama3"
    with pytest.raises(UnsupportedArchitecture, match=f"'mrope'.*{known}"):
        RotaryEmbedding(16, 64, {"rope_type": "mrope"})
