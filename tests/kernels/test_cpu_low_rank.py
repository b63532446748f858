"""Low-rank terms of adapters in the compiled kernels: equal to merged weights, and nothing to rows without one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayinfer_kernels import reference
from rayinfer_kernels.low_rank import LowRank, LowRankTable, TokenSlots, low_rank_part
from rayinfer_kernels.packed_weight import WeightFormat, pack
from rayinfer_kernels.quantized_weight import pack_quantized, quantize
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

TOLERANCES = {torch.float32: {"atol": 2e-4, "rtol": 1e-4}, torch.bfloat16: {"atol": 0.05, "rtol": 0.02}}
STACK_TOLERANCES = {torch.float32: {"atol": 1e-4, "rtol": 1e-3}, torch.bfloat16: {"atol": 0.1, "rtol": 0.1}}
SHAPES = [(7, 1), (33, 16), (160, 41), (64, 576), (96, 64)]  # outputs, inputs
CPU = torch.device("cpu")


def random_table(num_slots, outputs, inputs, dtype, *, is_gated=False):
    """Slots of one or two terms each, and the change of the weight that each slot means."""
    table, changes = LowRankTable(num_slots), []
    for slot in range(num_slots):
        change, parts = torch.zeros(outputs * (1 + is_gated), inputs), []
        for half in range(1 + is_gated):
            for first, last, rank in [(0, outputs, 1 + slot), (outputs // 3, outputs, 5)]:
                a = (torch.randn(rank, inputs) * inputs**-0.5).to(dtype)
                b = (torch.randn(last - first, rank) * 0.3).to(dtype)
                parts.append(low_rank_part(a, b, first, 0.5, is_second_half=half == 1))
                change[half * outputs + first : half * outputs + last] += 0.5 * b.float() @ a.float()
        table[slot] = parts
        changes.append(change)
    return table, changes


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 5, 40])
def test_terms_equal_changed_weights(isa_kernels, dtype, outputs, inputs, num_rows):
    weight, bias = (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype), torch.randn(outputs).to(dtype)
    table, changes = random_table(3, outputs, inputs, dtype)
    slots = np.arange(num_rows) % 4 - 1
    x, low_rank = torch.randn(num_rows, inputs).to(dtype), LowRank(table, TokenSlots(slots, CPU))
    got = isa_kernels.packed_linear(x, pack(weight.clone()), bias, low_rank)
    plain = isa_kernels.packed_linear(x, pack(weight.clone()), bias)
    for row, slot in enumerate(slots):
        if slot < 0:
            assert torch.equal(got[row], plain[row])
            continue
        expected = F.linear(x[row].float(), weight.float() + changes[slot], bias.float()).to(dtype)
        torch.testing.assert_close(got[row], expected, **TOLERANCES[dtype])
    torch.testing.assert_close(
        reference.packed_linear(x, pack(weight.clone()), bias, low_rank), got, **TOLERANCES[dtype]
    )


@pytest.mark.parametrize("outputs", [16, 41])
def test_terms_of_both_halves_enter_before_the_gate(isa_kernels, dtype, outputs):
    inputs, num_rows = 48, 9
    weight = (torch.randn(2 * outputs, inputs) * inputs**-0.5).to(dtype)
    table, changes = random_table(2, outputs, inputs, dtype, is_gated=True)
    slots = np.arange(num_rows) % 3 - 1
    x, low_rank = torch.randn(num_rows, inputs).to(dtype), LowRank(table, TokenSlots(slots, CPU))
    packed = pack(weight.clone(), is_gated=True)
    got = isa_kernels.packed_gated_linear(x, packed, None, "silu", low_rank)
    plain = isa_kernels.packed_gated_linear(x, packed, None, "silu")
    for row, slot in enumerate(slots):
        if slot < 0:
            assert torch.equal(got[row], plain[row])
            continue
        gate, up = F.linear(x[row].float(), weight.float() + changes[slot]).chunk(2)
        torch.testing.assert_close(got[row], (F.silu(gate) * up).to(dtype), **TOLERANCES[dtype])
    by_torch = reference.packed_gated_linear(x, packed, None, "silu", low_rank)
    torch.testing.assert_close(by_torch, got, **TOLERANCES[dtype])


@pytest.mark.parametrize("format", [WeightFormat.INT8, WeightFormat.INT8_DYNAMIC, WeightFormat.INT4_DYNAMIC])
def test_terms_are_added_to_products_of_quantized_weights(isa_kernels, dtype, format):
    weight, x = torch.randn(70, 64) * 0.1, torch.randn(11, 64).to(dtype)
    packed = pack_quantized(quantize(weight, format))
    table, changes = random_table(1, 70, 64, dtype)
    low_rank = LowRank(table, TokenSlots(np.zeros(11), CPU))
    term = isa_kernels.packed_linear(x, packed, None, low_rank).float() - isa_kernels.packed_linear(x, packed, None)
    torch.testing.assert_close(
        term, x.float() @ changes[0].T, atol=0.05 if dtype == torch.bfloat16 else 1e-4, rtol=0.02
    )


def test_a_row_with_an_adapter_has_the_same_bits_in_any_batch(isa_kernels, dtype):
    table, _ = random_table(3, 95, 130, dtype)
    packed, x = pack(torch.randn(95, 130).to(dtype)), torch.randn(50, 130).to(dtype)
    slots = np.arange(50) % 4 - 1
    together = isa_kernels.packed_linear(x, packed, None, LowRank(table, TokenSlots(slots, CPU)))
    torch.set_num_threads(3)
    for first, count in [(0, 1), (1, 1), (7, 6), (20, 30)]:
        part = slice(first, first + count)
        tokens = TokenSlots(slots[part], CPU)
        assert torch.equal(isa_kernels.packed_linear(x[part], packed, None, LowRank(table, tokens)), together[part])


@pytest.mark.parametrize("rank", [1, 7, 8, 9, 16, 19])
@pytest.mark.parametrize(("first", "outputs", "inputs"), [(0, 32, 32), (5, 60, 70), (64, 1, 7)])
def test_packed_terms_are_those_that_were_given(dtype, rank, first, outputs, inputs):
    a, b = torch.randn(rank, inputs).to(dtype), torch.randn(outputs, rank).to(dtype)
    part = low_rank_part(a, b, first, 1.0)
    assert torch.equal(part.dense_a, a)
    assert torch.equal(part.dense_b[:, first - part.begin :][:, :outputs], b.T)
    assert part.begin <= first
    assert part.end >= first + outputs


@pytest.mark.parametrize("rank", [1, 7, 8, 9, 19])
def test_terms_of_any_rank_equal_changed_weights(isa_kernels, dtype, rank):
    a, b = (torch.randn(rank, 70) * 70**-0.5).to(dtype), (torch.randn(50, rank) * 0.3).to(dtype)
    table = LowRankTable(1)
    table[0] = [low_rank_part(a, b, 20, 0.5)]
    weight, x = (torch.randn(90, 70) * 70**-0.5).to(dtype), torch.randn(3, 70).to(dtype)
    changed = weight.float().clone()
    changed[20:70] += 0.5 * b.float() @ a.float()
    got = isa_kernels.packed_linear(x, pack(weight), None, LowRank(table, TokenSlots(np.zeros(3), CPU)))
    torch.testing.assert_close(got, F.linear(x.float(), changed).to(dtype), **TOLERANCES[dtype])


def test_slots_that_a_table_lacks_are_refused(isa_kernels, dtype):
    table, _ = random_table(2, 8, 8, dtype)
    packed, x = pack(torch.randn(8, 8).to(dtype)), torch.randn(1, 8).to(dtype)
    for slot in (2, -2):
        with pytest.raises(ValueError, match="slots of adapters must lie below 2"):
            isa_kernels.packed_linear(x, packed, None, LowRank(table, TokenSlots(np.array([slot]), CPU)))


@pytest.mark.parametrize("format", [None, WeightFormat.INT8_DYNAMIC], ids=str)
def test_layers_as_one_operation_add_the_terms_and_keep_the_bits_of_other_rows(isa_kernels, dtype, format):
    """Requests 0 and 2 have adapters, whose terms enter the weights of the plain torch; request 1 has none."""
    case, spans = StackCase(hidden=50, intermediate=41), [(0, 0, 9), (1, 0, 20), (2, 0, 3)]
    model = RandomStack(case, dtype, dtype, format)
    step = make_step(spans)
    slots = np.repeat([1, -1, 0], [9, 20, 3])
    x = torch.randn(32, 50).to(dtype)
    changes = model.give_tables(partial(random_table, 2, dtype=dtype))
    adapted = replace(step, adapters=TokenSlots(slots, CPU))
    mixed = model.packed(isa_kernels).run(x.clone(), adapted)
    plain = model.packed(isa_kernels).run(x.clone(), step)
    assert torch.equal(mixed[9:29], plain[9:29])
    alone = model.packed(isa_kernels).run(
        x[:9].clone(), replace(make_step(spans[:1]), adapters=TokenSlots(slots[:9], CPU))
    )
    assert torch.equal(alone, mixed[:9])
    if format is None:
        for slot, rows in [(1, slice(0, 9)), (0, slice(29, 32))]:
            expected = model.changed(changes, slot).expected(x, step)[rows]
            torch.testing.assert_close(mixed[rows].float(), expected, **STACK_TOLERANCES[dtype])
    else:
        assert not torch.equal(mixed[:9], plain[:9])


@pytest.mark.parametrize("format", [None, WeightFormat.INT8_DYNAMIC], ids=str)
def test_outputs_keep_their_adapters(isa_kernels, dtype, format):
    model = RandomStack(StackCase(hidden=50, intermediate=41), dtype, dtype, format)
    model.give_tables(partial(random_table, 2, dtype=dtype))
    slots = TokenSlots(np.repeat([1, -1, 0], [9, 20, 3]), CPU)
    step, x = replace(make_step([(0, 0, 9), (1, 0, 20), (2, 0, 3)]), adapters=slots), torch.randn(32, 50).to(dtype)
    expected = model.packed(isa_kernels).run(x.clone(), step)
    for counts in ((1, 1, 1), (0, 0, 2), (2, 0, 1)):
        some = step.returning(counts)
        assert torch.equal(model.packed(isa_kernels).run(x.clone(), some), expected[some.outputs.lines])
