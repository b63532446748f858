"""Rotary embeddings of three positions: ordinary where these are equal, each section's own where they differ."""

import pytest
import torch

from rayinfer.layers.rotary_embedding import MultimodalRotaryEmbedding, RotaryEmbedding

CPU = torch.device("cpu")
ROPE = {"rope_theta": 1e4, "mrope_section": [2, 1, 1]}


def prepared(rope=ROPE):
    rotary = MultimodalRotaryEmbedding(8, 20, rope)
    rotary.reserve(3)
    rotary.prepare(torch.float32, CPU, 20)
    return rotary


def test_one_position_is_looked_up_in_the_ordinary_table():
    plain = RotaryEmbedding(8, 20, ROPE)
    plain.prepare(torch.float32, CPU, 20)
    rotary = prepared()
    rotary.fill(torch.tensor([[3, 7], [3, 7], [3, 7]]))
    for table, wanted in zip(rotary.tables, plain.tables, strict=True):
        assert torch.equal(table[:20], wanted)
        assert torch.equal(table[20:22], wanted[[3, 7]])
        assert len(table) == 23


def test_each_section_rotates_by_its_own_position():
    rotary = prepared()
    rotary.fill(torch.tensor([[3], [9], [14]]))
    for table in rotary.tables:
        assert table[20].tolist() == [
            table[position, channel].item() for channel, position in enumerate([3, 3, 9, 14] * 2)
        ]


@pytest.mark.parametrize(
    ("section", "message"),
    [([2, 2, 1], "must make 4 pairs of channels"), ("abc", "list of whole numbers"), (7, "list of whole numbers")],
)
def test_sections_that_do_not_fit_are_refused(section, message):
    with pytest.raises(ValueError, match=message):
        prepared(ROPE | {"mrope_section": section})
