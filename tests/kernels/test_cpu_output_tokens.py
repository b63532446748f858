"""Layers that return hidden states of some tokens alone: the same bits as among those of all, and the same cache."""

from dataclasses import replace

import pytest
import torch

from rayinfer_kernels.layer_stack import OutputTokens
from rayinfer_kernels.packed_weight import WeightFormat
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

CASES = [
    StackCase(),
    StackCase(hidden=33, intermediate=41, num_heads=3, num_kv_heads=1, head_dim=10, rotary_dim=10, windows=(None,)),
    StackCase(has_biases=True, has_head_norms=True, windows=(20, None, 7), unrotated=(2,), activation="gelu_tanh"),
]
SPANS = [(0, 0, 5), (1, 0, 33), (2, 0, 600)]
NEXT_SPANS = [(0, 5, 6), (2, 600, 601), (1, 33, 50)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
@pytest.mark.parametrize("counts", [(1, 1, 1), (0, 0, 1), (0, 3, 0), (5, 33, 600), (0, 0, 0)], ids=str)
def test_outputs_are_the_same_bits_as_among_all_tokens(kernels, dtype, case, has_small_cache, counts):
    model = RandomStack(case, dtype, torch.int8 if has_small_cache else dtype)
    check_same(model, kernels, counts)


@pytest.mark.parametrize("format", [None, WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC])
def test_every_instruction_set_and_format_return_the_same_outputs(isa_kernels, dtype, format):
    model = RandomStack(StackCase(hidden=64, intermediate=96), dtype, dtype, format)
    check_same(model, isa_kernels, (1, 0, 2))


def check_same(model, kernels, counts):
    """Compare two steps, of which the second reads what the first wrote, on one and on three threads."""
    whole, cut = model.packed(kernels), model.packed(kernels)
    for spans, returned in ((SPANS, counts), (NEXT_SPANS, (1, 0, 1))):
        step = make_step(spans)
        x = torch.randn(len(step.positions), model.case.hidden).to(model.dtype)
        expected = whole.run(x.clone(), step)
        some = step.returning(returned)
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            got = cut.run(x.clone(), some)
            assert got.shape == (sum(returned), model.case.hidden)
            assert torch.equal(got, expected[some.outputs.lines])


@pytest.mark.parametrize(
    ("lines", "cu_seqlens"),
    [
        ([3, 4], [0, 2, 1, 2]),
        ([-1, 0, 1, 2, 3, 4], [0, 6, 6, 6]),
        ([4], [1, 1, 1, 1]),
        ([10, 11], [0, 0, 0, 1]),
        ([], [0, 0, 0]),
        ([4, 6], [0, 1, 2, 2]),
        ([0, 1], [0, 2, 2, 2]),
    ],
    ids=str,
)
def test_outputs_that_are_not_the_last_tokens_are_refused(kernels, lines, cu_seqlens):
    stack = RandomStack(StackCase(), torch.float32, torch.float32).packed(kernels)
    outputs = OutputTokens(torch.tensor(lines, dtype=torch.int64), torch.tensor(cu_seqlens, dtype=torch.int32))
    step = replace(make_step([(0, 0, 5), (1, 0, 3), (2, 0, 4)]), outputs=outputs)
    with pytest.raises(ValueError, match="outputs"):
        stack.run(torch.randn(12, 48), step)
