import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rayinfer_kernels
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

CASES = [
    StackCase(),
    StackCase(hidden=33, intermediate=41, num_heads=3, num_kv_heads=1, head_dim=10, rotary_dim=10),
    StackCase(num_heads=4, num_kv_heads=4, head_dim=24, rotary_dim=8, activation="gelu_tanh"),
    StackCase(has_biases=True, windows=(20, None, 7), unrotated=(1,)),
    StackCase(has_head_norms=True, num_heads=8, num_kv_heads=1, eps=1e-3),
    StackCase(hidden=288, intermediate=768, num_heads=9, num_kv_heads=3, head_dim=32, rotary_dim=32),
]
TOLERANCES = {torch.float32: {"atol": 2e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 0.06, "rtol": 0.06}}
SPANS = [
    [(0, 0, 5), (1, 0, 33), (2, 0, 70)],
    [(2, 70, 71), (0, 5, 30), (1, 33, 34)],
    [(0, 30, 31), (1, 34, 35), (2, 71, 72)],
    [(1, 35, 36)],
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
def test_layers_as_one_operation_equal_the_plainest_torch(kernels, dtype, case, has_small_cache):
    check_equal(kernels, case, dtype, has_small_cache)


@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[3]], ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
def test_every_instruction_set_computes_the_same_layers(isa_kernels, dtype, case, has_small_cache):
    check_equal(isa_kernels, case, dtype, has_small_cache)


def check_equal(kernels, case, dtype, has_small_cache):
    model = RandomStack(case, dtype, torch.int8 if has_small_cache else dtype)
    stack = model.packed(kernels)
    tolerances = {"atol": 0.02, "rtol": 0.02} if has_small_cache and dtype == torch.float32 else TOLERANCES[dtype]
    for spans in SPANS:
        step = make_step(spans)
        x = torch.randn(len(step.positions), case.hidden).to(dtype)
        torch.testing.assert_close(stack.run(x, step).float(), model.expected(x, step), **tolerances)


@pytest.mark.parametrize("windows", [(None, None), (300, None)], ids=str)
def test_every_layer_shares_long_contexts_between_threads(kernels, dtype, windows):
    model = RandomStack(StackCase(windows=windows), dtype, dtype)
    stack, alone = model.packed(kernels), model.packed(kernels)
    for spans in ([(0, 0, 600), (1, 0, 270)], [(0, 600, 601)], [(0, 601, 602), (1, 270, 272)]):
        step = make_step(spans)
        x = torch.randn(len(step.positions), 48).to(dtype)
        torch.set_num_threads(1)
        expected = alone.run(x, step)
        torch.testing.assert_close(expected.float(), model.expected(x, step), **TOLERANCES[dtype])
        for num_threads in (2, 5):
            torch.set_num_threads(num_threads)
            assert torch.equal(stack.run(x, step), expected)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("has_small_cache", [False, True])
def test_a_token_gets_the_same_bits_alone_in_a_batch_in_any_chunks_and_on_any_number_of_threads(
    kernels, dtype, case, has_small_cache
):
    model = RandomStack(case, dtype, torch.int8 if has_small_cache else dtype)
    x = {request: torch.randn(72, case.hidden).to(dtype) for request in range(3)}

    def outputs(stack, spans):
        taken = torch.cat([x[request][begin:end] for request, begin, end in spans])
        parts = stack.run(taken, make_step(spans)).split([end - begin for _, begin, end in spans])
        return {(request, begin + i): row for (request, begin, _), part in zip(spans, parts, strict=True)
                for i, row in enumerate(part)}  # fmt: skip

    together, alone = model.packed(kernels), model.packed(kernels)
    expected = {}
    for spans in SPANS:
        expected |= outputs(together, spans)
    torch.set_num_threads(3)
    for span in [(2, 0, 13), (2, 13, 64), (2, 64, 72), (0, 0, 31), *((1, i, i + 1) for i in range(36))]:
        for place, row in outputs(alone, [span]).items():
            assert torch.equal(row, expected[place]), place


def test_a_token_that_is_not_a_number_spoils_no_other_request(kernels, dtype):
    model = RandomStack(StackCase(), dtype, dtype)
    step, x = make_step(SPANS[0]), torch.randn(108, 48).to(dtype)
    expected = model.packed(kernels).run(x, step)
    x[2] = torch.nan
    spoilt = model.packed(kernels).run(x, step)
    assert spoilt[2].isnan().all()
    assert torch.equal(spoilt[5:], expected[5:])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_the_step_before_left_behind_spoils_nothing(kernels, dtype, case):
    wide = StackCase(hidden=320, intermediate=800, num_heads=10, head_dim=32, rotary_dim=32)
    step = make_step(SPANS[0])
    RandomStack(wide, dtype, dtype).packed(kernels).run(torch.full((108, 320), torch.nan, dtype=dtype), step)
    model, x = RandomStack(case, dtype, dtype), torch.randn(108, case.hidden).to(dtype)
    torch.testing.assert_close(model.packed(kernels).run(x, step).float(), model.expected(x, step), **TOLERANCES[dtype])


def test_a_step_without_tokens_changes_nothing(kernels, dtype):
    stack = RandomStack(StackCase(), dtype, dtype).packed(kernels)
    step = make_step(SPANS[3])
    empty = type(step)(step.positions[:0], step.slot_mapping[:0], torch.zeros(1, dtype=torch.int32),
                       step.seq_lens[:0], step.block_tables[:0])  # fmt: skip
    assert stack.run(torch.empty(0, 48, dtype=dtype), empty).shape == (0, 48)


def test_threads_that_share_a_core_do_not_spin_through_each_others_time(kernels):
    stack = RandomStack(StackCase(windows=(None,) * 100), torch.float32, torch.float32).packed(kernels)
    step, x = make_step(SPANS[3]), torch.randn(1, 48)
    core = min(os.sched_getaffinity(0))

    def seconds_of_steps():
        stack.run(x, step)
        start = time.process_time()
        for _ in range(20):
            stack.run(x, step)
        return time.process_time() - start

    def on_one_core(num_threads):
        torch.set_num_threads(num_threads)
        os.sched_setaffinity(0, {core})
        rayinfer_kernels.pin_threads([core] * num_threads)
        return seconds_of_steps()

    for num_threads in (1, 2):  # each in a thread that ends, and with it its team
        with ThreadPoolExecutor(1) as thread:
            seconds = thread.submit(on_one_core, num_threads).result()
        if num_threads == 1:
            alone = seconds
    assert seconds < 3 * alone
