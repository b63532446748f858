"""Layers as a GPU runs them together, against the plainest torch and against the same layers one by one."""

import dataclasses

import pytest
import torch

from rayinfer_kernels.kv_cache import allocate_kv_cache
from rayinfer_kernels.quantized_weight import quantize_float8
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

TOLERANCES = {torch.float32: {"atol": 2e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 0.06, "rtol": 0.06}}
# A prompt, the next chunk of it beside another, a token beside a chunk, a token of each: few rows of 16 bits have
# kernels of their own.
SPANS = [[(0, 0, 5)], [(0, 5, 7), (1, 0, 1)], [(0, 7, 8), (1, 1, 6)], [(0, 8, 9), (1, 6, 7)]]
WITH_BIASES = StackCase(num_heads=2, num_kv_heads=1, has_biases=True, windows=(2, None))


def on(device, step):
    """With as many blocks as these requests can have: attention is cut into parts for the longest context possible."""
    return dataclasses.replace(step, block_tables=step.block_tables[:, :2]).on(device)


@pytest.mark.axes(
    heads=[(1, 1, 24, 8), (4, 2, 16, 16), (3, 1, 16, 8)],
    windows=[(None,), (2, None)],
    unrotated=[(), (0,)],
    has_biases=[False, True],
    has_head_norms=[False, True],
    activation=["silu", "gelu_tanh"],
    dtype=list(TOLERANCES),
)
def test_layers_together_equal_the_plainest_torch(case, device):
    case = dict(case)
    dtype, heads = case.pop("dtype"), case.pop("heads")
    sizes = dict(zip(("num_heads", "num_kv_heads", "head_dim", "rotary_dim"), heads, strict=True))
    decoder = StackCase(**sizes, **case, eps=1e-3)
    model = RandomStack(decoder, dtype, dtype)
    stack = model.on_gpu(device, lambda weight, is_gated: weight)
    for spans in SPANS:
        step = make_step(spans)
        x = torch.randn(len(step.positions), decoder.hidden).to(dtype)
        got = stack.run(x.to(device, copy=True), on(device, step)).cpu().float()
        torch.testing.assert_close(got, model.expected(x, step), **TOLERANCES[dtype])


def test_layers_of_eight_bits_with_a_cache_of_eight_bits_lose_little(device):
    model = RandomStack(WITH_BIASES, torch.bfloat16, torch.float8_e4m3fn)
    model.plain_caches = model.new_caches(torch.float32)
    stack = model.on_gpu(device, lambda weight, is_gated: quantize_float8(weight, is_gated=is_gated))
    for spans in SPANS:
        step = make_step(spans)
        x = torch.randn(len(step.positions), WITH_BIASES.hidden).to(torch.bfloat16)
        expected = model.expected(x, step)
        error = stack.run(x.to(device, copy=True), on(device, step)).cpu().float() - expected
        assert 0.005 < (error.norm() / expected.norm()).item() < 0.12


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_outputs_are_those_among_all_tokens(device, dtype):
    model = RandomStack(WITH_BIASES, dtype, dtype)
    whole, cut = (model.on_gpu(device, lambda weight, is_gated: weight) for _ in range(2))
    for spans, counts in ((SPANS[0], (2,)), (SPANS[1], (0, 1)), (SPANS[2], (0, 0))):
        step = make_step(spans)
        x, some = torch.randn(len(step.positions), WITH_BIASES.hidden).to(dtype), step.returning(counts)
        expected = whole.run(x.to(device, copy=True), on(device, step)).cpu()[some.outputs.lines]
        assert torch.equal(cut.run(x.to(device, copy=True), on(device, some)).cpu(), expected)


def test_a_stack_says_what_it_lacks(device):
    case = StackCase()
    stack = RandomStack(case, torch.float32, torch.float32).on_gpu(device, lambda weight, is_gated: weight)
    cache = allocate_kv_cache(1, 16, case.num_kv_heads, case.head_dim, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="2 layers need a PagedKVCache each, got 0"):
        stack.bind([cache, cache], torch.ones(4, 8), torch.ones(4, 8))
