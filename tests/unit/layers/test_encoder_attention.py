import torch

from rayinfer.layers.encoder_attention import EncoderAttention
from rayinfer.layers.relative_position_bias import RelativePositionBias

HIDDEN, HEADS, WIDTH = 24, 3, 8


def make_attention(**settings):
    generator = torch.Generator().manual_seed(0)
    attention = EncoderAttention(HIDDEN, HEADS, WIDTH, bias=True, **settings)
    for parameter in attention.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return attention


def expected(attention, source, scale, bias=0.0):
    """One head after the other, by the book."""
    query, key, value = attention.qkv_proj.forward(source).chunk(3, -1)
    heads = []
    for head in range(HEADS):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        scores = query[:, part] @ key[:, part].T * scale + (bias if isinstance(bias, float) else bias[head])
        heads.append(scores.softmax(-1) @ value[:, part])
    return attention.o_proj.forward(torch.cat(heads, -1))


def test_every_token_of_a_source_sees_all_of_it_and_nothing_else():
    attention, sources = make_attention(), [torch.randn(length, HIDDEN) for length in (5, 1, 9)]
    together = attention.forward(torch.cat(sources), [5, 1, 9]).split([5, 1, 9])
    for source, attended in zip(sources, together, strict=True):
        torch.testing.assert_close(attended, expected(attention, source, WIDTH**-0.5))


def test_what_else_is_read_does_not_change_a_bit(compiled_kernels):
    attention, source, other = make_attention(), torch.randn(7, HIDDEN), torch.randn(30, HIDDEN)
    alone = attention.forward(source, [7])
    assert torch.equal(attention.forward(torch.cat((other, source)), [30, 7])[30:], alone)


def test_biases_are_added_to_scores_that_are_not_scaled():
    bias = RelativePositionBias(HEADS, 8, 10, is_causal=False)
    attention, source = make_attention(scale=1.0, position_bias=bias), torch.randn(12, HIDDEN)
    bias.weight.copy_(torch.randn(8, HEADS))
    bias.prepare()
    torch.testing.assert_close(attention.forward(source, [12]), expected(attention, source, 1.0, bias.matrix(12)))
