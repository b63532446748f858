import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from rayinfer.layers.feed_forward import ACTIVATIONS, FeedForward


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_is_the_one_of_that_name_and_goes_between_the_layers(activation):
    feed_forward = FeedForward(8, 12, activation)
    with torch.no_grad():
        for parameter in feed_forward.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    x = torch.randn(3, 8)
    up, down = feed_forward.up_proj, feed_forward.down_proj
    wanted = F.linear(ACT2FN[activation](F.linear(x, up.weight, up.bias)), down.weight, down.bias)
    torch.testing.assert_close(feed_forward(x), wanted, atol=2e-5, rtol=1e-5)
