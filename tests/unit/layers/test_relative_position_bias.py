import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from rayinfer.layers.relative_position_bias import RelativePositionBias

SIZES = [(32, 128), (8, 20), (4, 9)]
LENGTH = 150


def both(num_buckets, max_distance, *, is_causal):
    config = T5Config(
        num_heads=3,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=is_causal,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = RelativePositionBias(3, num_buckets, max_distance, is_causal=is_causal)
    ours.weight.copy_(torch.randn(num_buckets, 3))
    theirs.relative_attention_bias.weight.data.copy_(ours.weight)
    ours.prepare()
    return ours, theirs.compute_bias(LENGTH, LENGTH)[0].detach()


@pytest.mark.parametrize(("num_buckets", "max_distance"), SIZES)
def test_an_encoders_biases_are_those_of_transformers(num_buckets, max_distance):
    ours, expected = both(num_buckets, max_distance, is_causal=False)
    assert torch.equal(ours.matrix(LENGTH), expected)


@pytest.mark.parametrize(("num_buckets", "max_distance"), SIZES)
def test_a_decoders_biases_are_those_of_transformers_with_the_last_one_for_all_that_is_further_back(
    num_buckets, max_distance
):
    ours, expected = both(num_buckets, max_distance, is_causal=True)
    distances = torch.arange(LENGTH)
    by_distance = expected[:, LENGTH - 1].flip(-1)  # of the last query, from itself back
    assert torch.equal(ours.table[:, distances.clamp(max=ours.table.shape[1] - 1)], by_distance)
    assert ours.table.dtype == torch.float32
