from dataclasses import replace

import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.encoder_stack import TokenRows
from rayinfer_kernels.packed_weight import WeightFormat
from support.kernels.encoder_stacks import EncoderCase, random_embeddings, random_encoder, random_tokens

CASES = [
    EncoderCase(),
    EncoderCase(hidden=33, intermediate=41, num_heads=3, head_dim=10, activation="relu", has_biases=False),
    EncoderCase(hidden=96, intermediate=160, head_dim=40, activation="gelu_tanh", max_distance=7),
    EncoderCase(hidden=64, num_heads=1, head_dim=72, activation="silu", is_gated=True),
]
LENGTHS = [[1], [300], [5, 33, 1, 64, 0, 65], [70, 3, 3, 3, 128], [17] * 40]
TOLERANCES = {torch.float32: {"atol": 3e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 0.06, "rtol": 0.06}}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_instruction_set_equals_the_plainest_torch(isa_kernels, dtype, case):
    torch.manual_seed(0)
    weights = random_encoder(case, dtype)
    stack, plain = isa_kernels.encoder_stack(*weights), reference.encoder_stack(*weights)
    for lengths in LENGTHS:
        x = torch.randn(sum(lengths), case.hidden).to(dtype)
        found, expected = stack.run(x, lengths), plain.run(x, lengths)
        torch.testing.assert_close(found.float(), expected.float(), **TOLERANCES[dtype])


@pytest.mark.parametrize("format", [WeightFormat.INT8, WeightFormat.INT8_DYNAMIC], ids=lambda each: each.name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_small_weights_equal_the_plainest_torch(isa_kernels, dtype, case, format):
    torch.manual_seed(0)
    weights = random_encoder(case, dtype, format)
    stack, plain = isa_kernels.encoder_stack(*weights), reference.encoder_stack(*weights)
    for lengths in LENGTHS:
        x = torch.randn(sum(lengths), case.hidden).to(dtype)
        off = (stack.run(x, lengths).float() - plain.run(x, lengths).float()).abs()
        # A number between two integers may be rounded to the other one: what depends on it is off by more.
        assert off.mean() < (2e-3 if dtype == torch.float32 else 0.02)
        assert off.max() < 0.15


@pytest.mark.parametrize("format", [None, WeightFormat.INT8_DYNAMIC], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_text_gets_the_same_bits_alone_and_in_any_batch(isa_kernels, dtype, case, format):
    stack = isa_kernels.encoder_stack(*random_encoder(case, dtype, format))
    lengths = LENGTHS[2] + LENGTHS[3] + LENGTHS[4]
    texts = [torch.randn(length, case.hidden).to(dtype) for length in lengths]
    expected = stack.run(torch.cat(texts), lengths).split(lengths)
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        for text, rows in zip(texts, expected, strict=True):
            assert torch.equal(stack.run(text, [len(text)]), rows)
        together = stack.run(torch.cat(texts[::-1]), lengths[::-1]).split(lengths[::-1])
        assert all(torch.equal(*pair) for pair in zip(together[::-1], expected, strict=True))


@pytest.mark.parametrize("has_all", [True, False], ids=["all tables", "tokens alone"])
@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_embeddings_and_means_equal_the_plainest_torch(isa_kernels, dtype, case, has_all):
    torch.manual_seed(0)
    weights, embeddings = random_encoder(case, dtype), random_embeddings(case, dtype, has_all=has_all)
    stack, plain = (each.encoder_stack(*weights, embeddings) for each in (isa_kernels, reference))
    for lengths in ([1], [300], [5, 33, 1, 64, 65], [17] * 40, []):
        tokens = random_tokens(lengths)
        found = stack.run_tokens(tokens, lengths)
        assert found.dtype == dtype
        if lengths:
            expected = plain.run_tokens(tokens, lengths)
            torch.testing.assert_close(found.float(), expected.float(), **TOLERANCES[dtype])
        means = stack.run_tokens(tokens, lengths, "mean")
        assert means.shape == (len(lengths), case.hidden)
        for mean, text in zip(means.float(), found.float().split(lengths), strict=True):
            torch.testing.assert_close(mean, text.mean(0), **TOLERANCES[dtype])


@pytest.mark.parametrize("format", [None, WeightFormat.INT8_DYNAMIC], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_picked_tokens_have_the_same_bits_as_among_all(isa_kernels, dtype, case, format):
    embeddings = random_embeddings(case, dtype, has_all=True)
    stack = isa_kernels.encoder_stack(*random_encoder(case, dtype, format), embeddings)
    for lengths in ([1], [300], [5, 33, 1, 64, 65], [17] * 40):
        tokens = random_tokens(lengths)
        texts = stack.run_tokens(tokens, lengths).split(lengths)
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            for pooling, place in (("cls", 0), ("last", -1)):
                picked = stack.run_tokens(tokens, lengths, pooling)
                assert torch.equal(picked, torch.stack([text[place] for text in texts]))


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_nothing_is_picked_of_a_text_without_tokens(kernels, dtype, pooling):
    embeddings = random_embeddings(CASES[0], dtype, has_all=True)
    stack = kernels.encoder_stack(*random_encoder(CASES[0], dtype), embeddings)
    with pytest.raises(ValueError, match="without tokens"):
        stack.run_tokens(random_tokens([3]), [3, 0], pooling)
    assert stack.run_tokens(random_tokens([]), [], pooling).shape == (0, 48)


def test_a_mean_has_the_same_bits_alone_and_in_any_batch(isa_kernels, dtype):
    case = CASES[1]
    stack = isa_kernels.encoder_stack(*random_encoder(case, dtype), random_embeddings(case, dtype))
    lengths = [5, 33, 1, 64, 65, *[17] * 40, 300]
    tokens = random_tokens(lengths)
    expected = stack.run_tokens(tokens, lengths, "mean")
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        for index, rows in enumerate(zip(*(each.split(lengths) for each in tokens), strict=True)):
            mean = stack.run_tokens(TokenRows(*rows), [len(rows[0])], "mean")
            assert torch.equal(mean[0], expected[index])


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
def test_tokens_outside_of_the_tables_are_refused(kernels):
    weights, embeddings = random_encoder(CASES[0], torch.float32), random_embeddings(CASES[0], torch.float32)
    stack = kernels.encoder_stack(*weights, embeddings)
    tokens = random_tokens([3])
    for name, row in (("ids", 50), ("ids", -1), ("types", 2), ("positions", 400)):
        wrong = tokens._replace(**{name: torch.tensor([0, row, 0])})
        with pytest.raises(IndexError, match="outside"):
            stack.run_tokens(wrong, [3], "mean")
    with pytest.raises(ValueError, match="token_types must be"):
        stack.run_tokens(tokens._replace(types=torch.zeros(2, dtype=torch.int64)), [3], "mean")
    with pytest.raises(ValueError, match="no embeddings"):
        kernels.encoder_stack(*weights).run_tokens(tokens, [3], "mean")
    with pytest.raises(ValueError, match="table of positions"):
        kernels.encoder_stack(*weights, replace(embeddings, positions=torch.zeros(3, 47)))


def test_a_token_that_is_not_a_number_spoils_its_text_alone(kernels, dtype):
    stack = kernels.encoder_stack(*random_encoder(CASES[2], dtype))
    lengths = [40, 33, 7]
    x = torch.randn(80, CASES[2].hidden).to(dtype)
    expected = stack.run(x, lengths)
    x[41] = torch.nan
    spoilt = stack.run(x, lengths)
    assert spoilt[40:73].isnan().all()
    assert torch.equal(spoilt[:40], expected[:40])
    assert torch.equal(spoilt[73:], expected[73:])


def test_what_a_wider_encoder_left_behind_spoils_nothing(kernels, dtype):
    wide = EncoderCase(hidden=320, intermediate=800, num_heads=10, head_dim=32)
    kernels.encoder_stack(*random_encoder(wide, dtype)).run(torch.full((99, 320), torch.nan, dtype=dtype), [99])
    weights = random_encoder(CASES[1], dtype)
    x = torch.randn(50, CASES[1].hidden).to(dtype)
    found, expected = (each.encoder_stack(*weights).run(x, [20, 30]) for each in (kernels, reference))
    torch.testing.assert_close(found.float(), expected.float(), **TOLERANCES[dtype])


def test_no_texts_are_an_empty_result(kernels, dtype):
    stack = kernels.encoder_stack(*random_encoder(CASES[0], dtype))
    assert stack.run(torch.empty(0, 48, dtype=dtype), []).shape == (0, 48)


def test_lengths_that_do_not_add_up_are_refused(kernels, dtype):
    stack = kernels.encoder_stack(*random_encoder(CASES[0], dtype))
    with pytest.raises(ValueError, match="3 rows"):
        stack.run(torch.empty(3, 48, dtype=dtype), [1, 1])
    with pytest.raises(ValueError, match="x must be"):
        stack.run(torch.empty(3, 47, dtype=dtype), [3])


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
def test_weights_that_do_not_fit_are_refused(kernels):
    layers, shape, _ = random_encoder(CASES[0], torch.float32)
    other, _, _ = random_encoder(EncoderCase(intermediate=96), torch.float32)
    with pytest.raises(ValueError, match="up must have 80 outputs"):
        kernels.encoder_stack([layers[0], other[0]], shape)
    with pytest.raises(ValueError, match="position_bias"):
        kernels.encoder_stack(layers, shape, torch.zeros(3, 4))
    with pytest.raises(ValueError, match="a layer"):
        kernels.encoder_stack([], shape)
