import pytest
import torch

from rayinfer_kernels import reference
from rayinfer_kernels.implementation import RowMasks

ROWS, WIDTHS = 9, [1, 31, 256, 257, 1000, 4099]


def logits_of(width: int, dtype: torch.dtype, rows: int = ROWS) -> torch.Tensor:
    return (torch.randn(rows, width + 3) * 4).to(dtype)[:, :width]


def settings_of(width: int, rows: int = ROWS, *, truncates: bool) -> list[torch.Tensor]:
    temperature = torch.tensor([1.0, 0.3, 2.0]).repeat(rows)[:rows].double()
    top_k = torch.full((rows,), width)
    top_p = torch.ones(rows, dtype=torch.float64)
    if truncates:
        top_k[::3], top_p[1::4] = min(width, 7), 0.6
    min_p = torch.tensor([0.0, 0.05]).repeat(rows)[:rows].double()
    is_greedy = (torch.arange(rows) % 4 == 3).long()
    return [temperature, top_k, top_p, min_p, torch.rand(rows, dtype=torch.float64), is_greedy]


def masks_of(width: int, lines: list[int]) -> RowMasks:
    words = torch.randint(-(2**31), 2**31, (len(lines), -(-width // 32)))
    words[:, ::3], words[:, 1::4] = 0, -1
    words[:, 0] |= 1
    return RowMasks(torch.tensor(lines, dtype=torch.int64), words.to(torch.int32))


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lines", [None, [], [4, 0, 8], list(range(ROWS))], ids=str)
def test_tokens_equal_those_of_the_reference(isa_kernels, dtype, width, lines, truncates):
    logits, settings = logits_of(width, dtype), settings_of(width, truncates=truncates)
    masks = None if lines is None else masks_of(width, lines)
    expected = reference.sample_rows(logits, *settings, masks)
    actual = isa_kernels.sample_rows(logits, *settings, masks)
    assert torch.equal(actual.is_invalid, expected.is_invalid)
    assert torch.equal(actual.token_ids, expected.token_ids)


@pytest.mark.parametrize("logits_kind", ["normal", "tied", "equal", "ascending", "peaked"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_truncated_draws_equal_those_of_the_reference(isa_kernels, dtype, logits_kind, is_masked):
    rows, width = 240, 4099
    logits = {
        "normal": torch.randn(rows, width) * 3,
        "tied": torch.randint(-4, 4, (rows, width)).float(),
        "equal": torch.zeros(rows, width),
        "ascending": torch.linspace(-9.0, 9.0, width).expand(rows, -1).contiguous(),
        "peaked": torch.randn(rows, width) * 20,
    }[logits_kind].to(dtype)
    grid = [(k, p) for k in (1, 5, 70, 1000, width) for p in (1e-9, 0.3, 0.5, 0.9, 0.9999, 1.0)]
    top_k, top_p = (torch.tensor(each).repeat(rows // len(grid)) for each in zip(*grid, strict=True))
    temperature, min_p = torch.tensor([0.2, 1.0, 3.0]).repeat(rows // 3), torch.tensor([0.0, 0.01]).repeat(rows // 2)
    settings = [temperature, top_k, top_p.double(), min_p, torch.rand(rows, dtype=torch.float64), torch.zeros(rows)]
    masks = masks_of(width, list(range(0, rows, 2))) if is_masked else None
    expected = reference.sample_rows(logits, *settings, masks)
    actual = isa_kernels.sample_rows(logits, *settings, masks)
    differs = (actual.token_ids != expected.token_ids).nonzero().squeeze(1)
    assert len(differs) <= 1, [(grid[int(row) % len(grid)], int(row)) for row in differs]  # a draw on a border


def test_rows_without_an_allowed_or_finite_token_are_invalid(isa_kernels, dtype):
    logits = logits_of(600, dtype, 5)
    logits[1, 7], logits[2, 300], logits[3] = float("nan"), float("inf"), float("-inf")
    bits = torch.full((2, 19), -1, dtype=torch.int32)
    bits[0] = 0
    bits[1, 0] = ~(1 << 7)
    settings = settings_of(600, 5, truncates=False)
    alone = isa_kernels.sample_rows(logits, *settings)
    masked = isa_kernels.sample_rows(logits, *settings, RowMasks(torch.tensor([0, 1]), bits))
    assert alone.is_invalid.tolist() == [False, True, True, True, False]
    assert masked.is_invalid.tolist() == [True, False, True, True, False]
    assert alone.token_ids[1:4].tolist() == [0, 0, 0]


def test_a_forbidden_token_is_never_drawn(isa_kernels, dtype):
    logits, rows = logits_of(4099, dtype, 1).expand(500, -1), 500
    uniform = torch.linspace(0.0, 1.0 - 2.0**-53, rows, dtype=torch.float64)
    plain = [torch.full((rows,), 5.0), torch.full((rows,), 4099), torch.ones(rows), torch.zeros(rows), uniform]
    masks = masks_of(4099, list(range(rows)))
    masks = RowMasks(masks.lines, masks.bits[:1].expand(rows, -1))
    token_ids = isa_kernels.sample_rows(logits, *plain, torch.zeros(rows), masks).token_ids
    assert (masks.bits[0, token_ids // 32] >> (token_ids % 32) & 1).all()
    assert len(set(token_ids.tolist())) > 100


def test_a_row_gets_the_same_token_in_any_batch(kernels, dtype):
    logits, settings = logits_of(1000, dtype), settings_of(1000, truncates=False)
    masks = masks_of(1000, [2, 5])
    together = kernels.sample_rows(logits, *settings, masks).token_ids
    for row, mask in ((2, 0), (5, 1), (6, None)):
        own = None if mask is None else RowMasks(torch.tensor([0]), masks.bits[mask : mask + 1])
        each = [setting[row : row + 1] for setting in settings]
        assert kernels.sample_rows(logits[row : row + 1], *each, own).token_ids.item() == together[row]


def test_draws_follow_the_probabilities(kernels, dtype):
    rows = 40_000
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).to(dtype).expand(rows, -1)
    plain = [torch.full((rows,), 0.7), torch.full((rows,), 4), torch.ones(rows), torch.zeros(rows)]
    masks = RowMasks(torch.arange(rows), torch.full((rows, 1), 0b1011, dtype=torch.int32))
    token_ids = kernels.sample_rows(
        logits, *plain, torch.rand(rows, dtype=torch.float64), torch.zeros(rows), masks
    ).token_ids
    shares = torch.bincount(token_ids, minlength=4) / rows
    expected = (
        (logits[0].float() / 0.7).masked_fill(torch.tensor([False, False, True, False]), float("-inf")).softmax(0)
    )
    torch.testing.assert_close(shares, expected, atol=0.012, rtol=0.0)


def test_masks_for_missing_rows_are_refused(kernels, dtype):
    logits, settings = logits_of(40, dtype), settings_of(40, truncates=False)
    with pytest.raises(IndexError):
        kernels.sample_rows(logits, *settings, masks_of(40, [ROWS]))
    with pytest.raises(ValueError, match="need as many masks"):
        kernels.sample_rows(logits, *settings, masks_of(20, [0]))


@pytest.mark.parametrize("num_rows", [0, 1, 33])
def test_numbers_to_draw_by_equal_those_of_the_reference(isa_kernels, num_rows):
    words = torch.randint(-(2**63), 2**63 - 1, (num_rows, 3))  # rows of which each column is a part
    words[::2, 1:] = torch.randint(0, 2000, words[::2, 1:].shape)
    words[:1] = torch.tensor([-1, 2**32 - 1, 2**31])
    assert torch.equal(isa_kernels.uniform(*words.unbind(1)), reference.uniform(*words.unbind(1)))


def test_numbers_to_draw_by_need_seed_position_and_choice_of_each_row(isa_kernels):
    seeds, positions = torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"positions has to be \(3,\)"):
        isa_kernels.uniform(seeds, positions, seeds)
    with pytest.raises(ValueError, match=r"choices has to be .* torch.int64"):
        isa_kernels.uniform(seeds, seeds, seeds.double())
