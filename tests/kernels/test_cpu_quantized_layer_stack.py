import pytest
import torch

from rayinfer_kernels.packed_weight import WeightFormat
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

FORMATS = [WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC]
CASES = [
    StackCase(),
    StackCase(hidden=33, intermediate=41, num_heads=3, num_kv_heads=1, head_dim=10, rotary_dim=10),
    StackCase(hidden=64, intermediate=96, num_heads=4, num_kv_heads=4, head_dim=24, rotary_dim=8, has_biases=True),
    StackCase(has_head_norms=True, num_heads=8, num_kv_heads=1, activation="gelu_tanh", windows=(20, None)),
]
SPANS = [
    [(0, 0, 5), (1, 0, 33), (2, 0, 70)],
    [(2, 70, 71), (0, 5, 30), (1, 33, 34)],
    [(0, 30, 31), (1, 34, 35), (2, 71, 72)],
    [(1, 35, 36)],
]


@pytest.fixture(params=FORMATS, ids=lambda each: each.name)
def format(request) -> WeightFormat:
    return request.param


def errors(kernels, model: RandomStack) -> torch.Tensor:
    """Return how far every number of a few steps is off; they are about as large as 1."""
    stack, found = model.packed(kernels), []
    for spans in SPANS:
        step = make_step(spans)
        x = torch.randn(len(step.positions), model.case.hidden).to(model.dtype)
        found.append((stack.run(x, step).float() - model.expected(x, step)).abs().flatten())
    return torch.cat(found)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
def test_layers_with_small_weights_equal_the_plainest_torch_on_every_instruction_set(
    isa_kernels, dtype, format, case, has_small_cache
):
    torch.manual_seed(0)
    off = errors(isa_kernels, RandomStack(case, dtype, torch.int8 if has_small_cache else dtype, format))
    # A number between two integers may be rounded to the other one: what depends on it is off by more than the rest.
    if dtype == torch.float32:
        assert off.quantile(0.3) < 2e-6
        assert off.mean() < 2e-3
    else:
        assert off.mean() < (0.005 if format.is_dynamic and has_small_cache else 0.02)
    assert off.max() < 0.15


@pytest.mark.parametrize("case", CASES[1:3], ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
def test_a_token_gets_the_same_bits_alone_in_a_batch_in_any_chunks_and_on_any_number_of_threads(
    isa_kernels, dtype, format, case, has_small_cache
):
    model = RandomStack(case, dtype, torch.int8 if has_small_cache else dtype, format)
    x = [torch.randn(72, case.hidden).to(dtype) for _ in range(3)]

    def run(stack, spans):
        taken = torch.cat([x[request][begin:end] for request, begin, end in spans])
        parts = stack.run(taken, make_step(spans)).split([end - begin for _, begin, end in spans])
        return dict(zip(spans, parts, strict=True))

    together, alone = model.packed(isa_kernels), model.packed(isa_kernels)
    expected = [torch.empty_like(rows) for rows in x]
    for spans in SPANS:
        for (request, begin, end), part in run(together, spans).items():
            expected[request][begin:end] = part
    torch.set_num_threads(3)
    for span in [(2, 0, 13), (2, 13, 64), (2, 64, 72), (0, 0, 31), *((1, i, i + 1) for i in range(36))]:
        request, begin, end = span
        assert torch.equal(run(alone, [span])[span], expected[request][begin:end]), span
