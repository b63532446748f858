import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayinfer_kernels.gpu.low_rank import add_low_rank_
from rayinfer_kernels.low_rank import NUMBERS_PER_GROUP, LowRank, LowRankPart, LowRankTable, TokenSlots
from support.kernels.row_layouts import LAYOUTS, laid_out

TOLERANCES = {
    torch.float32: {"atol": 5e-6, "rtol": 1e-5},
    torch.bfloat16: {"atol": 1e-3, "rtol": 2.0**-7},
    torch.float16: {"atol": 1e-4, "rtol": 2.0**-10},
}
SLOTS = {  # of each row, -1: none
    "mixed": [0, -1, 2, 0, 1, -1, 2],
    "none": [-1, -1, -1],
    "one row": [1],
    "a prompt": [1] * 37 + [-1] * 3 + [0] * 16,
}


def part_of(a, b, first, scale, *, is_second_half):
    """Lay out a term as on a GPU, also for the interpreter's tensors."""
    before = first % NUMBERS_PER_GROUP
    columns = F.pad(b.T, (before, -(before + len(b)) % NUMBERS_PER_GROUP)).contiguous()
    begin = first - before
    return LowRankPart(a, columns, *a.shape, begin, begin + columns.shape[1], scale, is_second_half)


def random_table(ranks, num_outputs, num_inputs, dtype, device, *, is_gated):
    """A table of a slot for each rank, with a second term of the last outputs, and the changes that they mean."""
    table, changes = LowRankTable(len(ranks) + 1), []  # the last slot has no terms
    for slot, rank in enumerate(ranks):
        change = torch.zeros(num_outputs * (1 + is_gated), num_inputs, device=device)
        parts = []
        for half in range(1 + is_gated):
            for first, size in ((0, rank), (num_outputs // 3, 5)):
                a = (torch.randn(size, num_inputs) * num_inputs**-0.5).to(device, dtype)
                b = (torch.randn(num_outputs - first, size) * 0.3).to(device, dtype)
                parts.append(part_of(a, b, first, 0.5, is_second_half=half == 1))
                change[half * num_outputs + first : (half + 1) * num_outputs] += 0.5 * b.float() @ a.float()
        table[slot] = parts
        changes.append(change)
    return table, changes


@pytest.mark.axes(
    dtype=list(TOLERANCES),
    slots=list(SLOTS),
    ranks=[(16, 4, 8), (1, 3, 2), (70, 16, 33)],
    num_inputs=[72, 16, 130],
    num_outputs=[33, 64, 130],
    is_gated=[False, True],
    layout=LAYOUTS,
)
def test_rows_of_each_adapter_get_its_terms_and_the_others_keep_their_bits(case, device):
    slots, dtype, num_inputs = np.array(SLOTS[case["slots"]]), case["dtype"], case["num_inputs"]
    table, changes = random_table(
        case["ranks"], case["num_outputs"], num_inputs, dtype, device, is_gated=case["is_gated"]
    )
    x = laid_out(torch.randn(len(slots), num_inputs).to(dtype), case["layout"], device)
    out = torch.randn(len(slots), case["num_outputs"] * (1 + case["is_gated"])).to(device, dtype)
    before = out.clone()
    add_low_rank_(out, x, LowRank(table, TokenSlots(slots, device)), is_gated=case["is_gated"])
    for row, slot in enumerate(slots):
        if slot < 0:
            assert torch.equal(out[row], before[row])
        else:
            expected = before[row].float() + x[row].float() @ changes[slot].T
            torch.testing.assert_close(out[row], expected.to(dtype), **TOLERANCES[dtype])


def test_bits_of_a_row_do_not_depend_on_the_others(device):
    table, _ = random_table((16, 4), 96, 64, torch.float32, device, is_gated=False)
    slots = np.array([0, 1, -1, 0, 1, 1] * 9)
    x, out = torch.randn(len(slots), 64, device=device), torch.randn(len(slots), 96, device=device)
    alone = out.clone()
    add_low_rank_(out, x, LowRank(table, TokenSlots(slots, device)))
    for row, slot in enumerate(slots):
        one = slice(row, row + 1)
        add_low_rank_(alone[one], x[one], LowRank(table, TokenSlots(np.array([slot]), device)))
    if device.type == "cuda":
        assert torch.equal(alone, out)
    else:  # the interpreter's products are numpy's, whose bits depend on a row's place on some processors
        torch.testing.assert_close(alone, out, rtol=1e-5, atol=1e-6)


def test_a_slot_may_be_filled_again_and_may_have_no_terms(device):
    table, changes = random_table((8,), 40, 24, torch.float32, device, is_gated=False)
    x, slots = torch.randn(3, 24, device=device), TokenSlots(np.array([0, 1, 0]), device)
    first = add_low_rank_(torch.zeros(3, 40, device=device), x, LowRank(table, slots))
    torch.testing.assert_close(first[[0, 2]], x[[0, 2]] @ changes[0].T, **TOLERANCES[torch.float32])
    assert not first[1].any()
    other, changes = random_table((8,), 40, 24, torch.float32, device, is_gated=False)
    table[0] = other[0]
    again = add_low_rank_(torch.zeros(3, 40, device=device), x, LowRank(table, slots))
    torch.testing.assert_close(again[0], x[0] @ changes[0].T, **TOLERANCES[torch.float32])
    table[0] = ()
    assert not add_low_rank_(torch.zeros(3, 40, device=device), x, LowRank(table, slots)).any()


def test_rows_that_do_not_fit_are_refused(device):
    table, _ = random_table((8,), 40, 24, torch.float32, device, is_gated=False)
    slots = TokenSlots(np.array([0, 0]), device)
    for out in (torch.zeros(3, 40), torch.zeros(2, 40, dtype=torch.float64), torch.zeros(40, 2).T):
        with pytest.raises(ValueError, match="cannot be added"):
            add_low_rank_(out.to(device), torch.randn(2, 24, device=device), LowRank(table, slots))
