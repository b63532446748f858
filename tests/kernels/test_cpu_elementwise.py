import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.cpu.kernels import CpuKernels

# A bfloat16 norm is rounded twice.
TOLERANCES = {torch.float32: {"atol": 2e-6, "rtol": 2e-6}, torch.bfloat16: {"atol": 1e-6, "rtol": 0.016}}
ROWS = [0, 1, 7, 300]
GATES = ["silu_and_mul", "gelu_tanh_and_mul"]
ACTIVATIONS = ["gelu", "gelu_tanh"]


def strided(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(rows, width + 13) * 3).to(dtype)[:, 5 : 5 + width]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 16, 37, 576])
def test_norms_equal_the_reference(kernels, dtype, rows, width):
    x, weight = strided(rows, width, dtype), torch.randn(width).to(dtype)
    actual = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(actual, reference.rms_norm(x, weight, 1e-5), **TOLERANCES[dtype])


@pytest.mark.parametrize("width", [1, 37, 640])
def test_norms_whose_scale_counts_from_one_equal_the_reference(kernels, dtype, width):
    x, weight = strided(50, width, dtype), (torch.randn(width) * 0.1).to(dtype)
    ours = torch.randn(50, width).to(dtype)
    theirs = ours.clone()
    actual = kernels.rms_norm(x, weight, 1e-5, unit_offset=True)
    torch.testing.assert_close(actual, reference.rms_norm(x, weight, 1e-5, unit_offset=True), **TOLERANCES[dtype])
    actual = kernels.add_rms_norm(x, ours, weight, 1e-5, unit_offset=True)
    expected = reference.add_rms_norm(x, theirs, weight, 1e-5, unit_offset=True)
    torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 16, 37, 576])
def test_layer_norms_equal_the_reference(kernels, dtype, rows, width):
    x, weight, bias = strided(rows, width, dtype) + 2, torch.randn(width).to(dtype), torch.randn(width).to(dtype)
    actual = kernels.layer_norm(x, weight, bias, 1e-5)
    # Near zero the scaled and the shifted part cancel each other.
    tolerances = TOLERANCES[dtype] | {"atol": 2e-6 if dtype == torch.float32 else 1e-2}
    torch.testing.assert_close(actual, reference.layer_norm(x, weight, bias, 1e-5), **tolerances)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [3, 64, 576])
def test_norms_of_sums_equal_the_reference_and_change_the_residual_alike(kernels, dtype, rows, width):
    x, weight = strided(rows, width, dtype), torch.randn(width).to(dtype)
    ours = torch.randn(rows, width).to(dtype)
    theirs = ours.clone()
    actual = kernels.add_rms_norm(x, ours, weight, 1e-5)
    expected = reference.add_rms_norm(x, theirs, weight, 1e-5)
    torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])
    assert torch.equal(ours, theirs)


def test_norms_of_heads_within_a_stacked_product_equal_the_reference(kernels, dtype):
    heads, weight = strided(6, 5 * 24, dtype).unflatten(-1, (5, 24)), torch.randn(24).to(dtype)
    actual = kernels.rms_norm(heads, weight, 1e-6)
    torch.testing.assert_close(actual, reference.rms_norm(heads, weight, 1e-6), **TOLERANCES[dtype])


@pytest.mark.parametrize("num_lines", [0, 5])
@pytest.mark.parametrize("width", [1, 31, 64, 1000, 49152])
def test_masks_forbid_what_the_reference_forbids(isa_kernels, num_lines, width):
    rows, lines = torch.randn(7, width + 3)[:, :width], torch.randperm(7)[:num_lines]
    words = torch.randint(-(2**31), 2**31, (num_lines, -(-width // 32) + 1))
    words[:, ::3], words[:, 1::3] = 0, -1  # none of 32, and all
    masks = words.to(torch.int32)[:, : -(-width // 32)]
    expected = rows.clone()
    reference.mask_rows_(expected, lines, masks)
    isa_kernels.mask_rows_(rows, lines, masks)
    assert torch.equal(rows, expected)


def test_masks_that_do_not_fit_are_refused(kernels):
    rows, lines, masks = torch.randn(2, 40), torch.tensor([0]), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(IndexError):
        kernels.mask_rows_(rows, lines + 2, masks)
    for wrong in ((rows.double(), lines, masks), (rows, lines, masks[:, :1]), (rows, lines.repeat(2), masks)):
        with pytest.raises(ValueError, match=r"expected|need"):
            kernels.mask_rows_(*wrong)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("head_dim", [2, 8, 40, 64, 128])
def test_rotations_equal_the_reference(kernels, dtype, rows, head_dim):
    x = strided(rows, 3 * head_dim, dtype).unflatten(-1, (3, head_dim))
    cos, sin = (torch.randn(rows, head_dim).to(dtype) for _ in range(2))
    expected = reference.rotary_embedding(x, cos, sin)
    torch.testing.assert_close(kernels.rotary_embedding(x, cos, sin), expected, atol=2e-6, rtol=2e-6)


# Gates and activations are compared with the reference in float64: in float32 its own digits cancel far below zero.
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 16, 77, 1536])
@pytest.mark.parametrize("gate", GATES)
def test_gates_equal_the_reference(kernels, dtype, rows, width, gate):
    x = strided(rows, 2 * width, dtype) * 8
    actual, expected = getattr(kernels, gate)(x), getattr(reference, gate)(x.double()).to(dtype)
    torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [1, 16, 77, 1536])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_the_reference(kernels, dtype, rows, width, activation):
    x = strided(rows, width, dtype)
    actual, expected = getattr(kernels, activation)(x), getattr(reference, activation)(x.double()).to(dtype)
    torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])


@pytest.mark.parametrize(("activation", "approximate"), [("gelu", "none"), ("gelu_tanh", "tanh")])
def test_activations_keep_their_digits_where_almost_nothing_is_left(library, activation, approximate):
    x = torch.linspace(-9, 9, 2000)[None]
    actual = getattr(CpuKernels(library.handle, torch.float32), activation)(x)
    exact = torch.nn.functional.gelu(x.double(), approximate=approximate)
    torch.testing.assert_close(actual.double(), exact, atol=1e-11, rtol=1e-5)


@pytest.mark.parametrize("gate", GATES)
def test_gates_of_extreme_values_equal_the_reference(kernels, dtype, gate):
    gates = torch.tensor([-1e30, -200.0, -88.0, -87.0, -0.0, 0.0, 1e-30, 87.0, 89.0, 200.0, 1e30])
    gates = torch.cat([gates, torch.tensor([float("inf"), float("nan")])])
    x = torch.cat([gates, torch.ones_like(gates)])[None].to(dtype)
    actual, expected = getattr(kernels, gate)(x), getattr(reference, gate)(x.double()).to(dtype)
    torch.testing.assert_close(actual, expected, equal_nan=True, atol=1e-30, rtol=0.008)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_extreme_values_equal_the_reference(kernels, dtype, activation):
    x = torch.tensor([[-1e30, -200.0, -20.0, -0.0, 0.0, 1e-30, 87.0, 200.0, 1e30, float("inf"), float("nan")]]).to(
        dtype
    )
    actual, expected = getattr(kernels, activation)(x), getattr(reference, activation)(x.double()).to(dtype)
    torch.testing.assert_close(actual, expected, equal_nan=True, atol=1e-30, rtol=0.008)


def test_every_instruction_set_equals_the_reference(isa_kernels, dtype):
    x, weight = strided(7, 74, dtype), torch.randn(74).to(dtype)
    cos, sin = (torch.randn(7, 74).to(dtype) for _ in range(2))
    for name, *arguments in (("rms_norm", weight, 1e-5), ("layer_norm", weight, weight, 1e-5)):
        actual, expected = (getattr(each, name)(x, *arguments) for each in (isa_kernels, reference))
        tolerances = TOLERANCES[dtype] | {"atol": 2e-6 if dtype == torch.float32 else 1e-2}
        torch.testing.assert_close(actual, expected, **tolerances)
    for unit_offset in (False, True):
        ours, theirs = (torch.ones(7, 74).to(dtype) for _ in range(2))
        actual = isa_kernels.add_rms_norm(x, ours, weight, 1e-5, unit_offset)
        expected = reference.add_rms_norm(x, theirs, weight, 1e-5, unit_offset)
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])
        assert torch.equal(ours, theirs)
    for name in (*GATES, *ACTIVATIONS):
        actual, expected = getattr(isa_kernels, name)(x), getattr(reference, name)(x.double()).to(dtype)
        torch.testing.assert_close(actual, expected, **TOLERANCES[dtype])
    heads = x[:, None]
    expected = reference.rotary_embedding(heads, cos, sin)
    torch.testing.assert_close(isa_kernels.rotary_embedding(heads, cos, sin), expected, atol=2e-6, rtol=2e-6)
    best = isa_kernels.argmax(x)
    assert torch.equal(best.values, x.amax(-1).float())
    assert torch.equal(x.gather(1, best.indices[:, None])[:, 0], x.amax(-1))


def test_results_do_not_depend_on_the_number_of_threads(kernels, dtype):
    x, weight = torch.randn(500, 576).to(dtype), torch.randn(576).to(dtype)
    cos, sin = (torch.randn(500, 64).to(dtype) for _ in range(2))

    def results() -> list[torch.Tensor]:
        heads = x.unflatten(-1, (9, 64))
        normed = kernels.add_rms_norm(x, x.clone(), weight, 1e-5)
        activated = [kernels.silu_and_mul(x), kernels.gelu(x), kernels.gelu_tanh(x)]
        return [
            *activated,
            normed,
            kernels.layer_norm(x, weight, weight, 1e-5),
            kernels.rotary_embedding(heads, cos, sin),
        ]

    on_two = results()
    torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(results(), on_two, strict=True))


@pytest.mark.parametrize("width", [1, 15, 16, 40, 1000])
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_the_greatest_number_of_each_row_is_found_at_its_first_place(kernels, dtype, width, num_rows):
    for high in (3, 1000):  # with few different numbers, many are equal
        rows = torch.randint(-high, high, (num_rows, width + 3)).to(dtype)[:, :width]
        best, expected = kernels.argmax(rows), rows.max(-1)
        assert torch.equal(best.values, expected.values.float())
        assert torch.equal(rows.gather(1, best.indices[:, None])[:, 0], expected.values)
        assert all((rows[i, :at] < rows[i, at]).all() for i, at in enumerate(best.indices.tolist()))


def test_a_row_with_a_number_that_is_none_has_no_greatest_and_minus_infinity_is_one(kernels, dtype):
    rows = torch.randn(4, 50).to(dtype)
    rows[0, 3] = rows[2, 49] = torch.nan
    rows[1] = -torch.inf
    best = kernels.argmax(rows)
    assert best.values.isnan().tolist() == [True, False, True, False]
    assert (best.values[1].item(), best.indices[1].item()) == (-torch.inf, 0)
    assert best.indices.lt(50).all()
