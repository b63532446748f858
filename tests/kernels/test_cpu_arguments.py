"""Validation of arguments for the C++ kernels: out-of-bounds accesses are errors before the call."""

from functools import partial

import pytest
import torch

from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.kv_cache import KVCache, allocate_kv_cache
from rayinfer_kernels.packed_weight import pack
from support.kernels.layer_stacks import RandomStack, StackCase, make_step

CPU, FAR = torch.device("cpu"), 10**9


@pytest.fixture
def kernels(library) -> CpuKernels:
    return CpuKernels(library.handle, torch.float32)


def cache(dtype: torch.dtype = torch.float32, *, num_heads: int = 2, head_dim: int = 16) -> KVCache:
    return allocate_kv_cache(4, 16, num_heads, head_dim, dtype, CPU)


def attend(kernels: CpuKernels, **changes: object) -> torch.Tensor:
    arguments = {
        "query": torch.randn(3, 4, 16),
        "kv_cache": cache(),
        "block_tables": torch.tensor([[3, 0]]),
        "cu_seqlens_q": torch.tensor([0, 3]),
        "seq_lens": torch.tensor([20]),
    }
    return kernels.paged_attention(**(arguments | changes), scale=1.0)


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (IndexError, {"block_tables": torch.tensor([[3, FAR]])}),
        (IndexError, {"block_tables": torch.tensor([[-1, 0]])}),
        (IndexError, {"seq_lens": torch.tensor([FAR])}),
        (IndexError, {"seq_lens": torch.tensor([2])}),
        (IndexError, {"cu_seqlens_q": torch.tensor([0, FAR])}),
        (IndexError, {"cu_seqlens_q": torch.tensor([-FAR, 3])}),
        (ValueError, {"cu_seqlens_q": torch.tensor([0])}),
        (ValueError, {"block_tables": torch.tensor([3, 0])}),
        (ValueError, {"query": torch.randn(3, 3, 16)}),
        (ValueError, {"query": torch.randn(3, 1, 16)}),
        (ValueError, {"query": torch.randn(3, 4, 160)}),
        (ValueError, {"query": torch.randn(3, 4, 16).bfloat16()}),
        (ValueError, {"kv_cache": cache(torch.bfloat16)}),
        (ValueError, {"kv_cache": allocate_kv_cache(4, 12, 2, 16, torch.float32, CPU)}),
        (
            TypeError,
            {"kv_cache": allocate_kv_cache(4, 16, 2, 16, torch.float32, CPU, computed_on=torch.device("cuda"))},
        ),
        (ValueError, {"window": -1}),
        (ValueError, {"position_bias": torch.randn(1, 3)}),
    ],
)
def test_attention_reads_only_what_is_there(kernels, error, changes):
    assert attend(kernels).shape == (3, 4, 16)
    with pytest.raises(error):
        attend(kernels, **changes)


def test_blocks_behind_a_window_and_of_requests_without_new_tokens_need_not_be_there(kernels):
    tables, starts = torch.tensor([[-1, 2], [-1, -1]]), torch.tensor([0, 3, 3])
    lengths = torch.tensor([31, 20])
    attend(kernels, block_tables=tables, cu_seqlens_q=starts, seq_lens=lengths, window=12)
    with pytest.raises(IndexError, match="request 0"):
        attend(kernels, block_tables=tables, cu_seqlens_q=starts, seq_lens=lengths, window=14)


@pytest.mark.parametrize("slot_mapping", [[64], [-1], [FAR], [0, 1]])
@pytest.mark.parametrize("kept", [torch.float32, torch.int8], ids=str)
def test_keys_are_written_only_into_the_cache(kernels, slot_mapping, kept):
    heads = torch.randn(1, 2, 16)
    with pytest.raises((IndexError, ValueError)):
        kernels.write_kv(heads, heads, cache(kept), torch.tensor(slot_mapping))


@pytest.mark.parametrize("wrong", [(1, 1, 16), (1, 4, 16), (1, 2, 40), (2, 2, 16), (1, 32)])
def test_keys_of_another_shape_are_refused(kernels, wrong):
    right = torch.randn(1, 2, 16)
    for key, value in ((torch.randn(wrong), right), (right, torch.randn(wrong)), (right, right.bfloat16())):
        with pytest.raises(ValueError):
            kernels.write_kv(key, value, cache(), torch.tensor([0]))


def test_products_take_what_fits_their_weight(kernels):
    x, weight, gated = torch.randn(3, 8), pack(torch.randn(40, 8)), pack(torch.randn(40, 8), is_gated=True)
    multiply = kernels.packed_linear
    for call in (
        partial(multiply, torch.randn(3, 7), weight, None),
        partial(multiply, x.bfloat16(), weight, None),
        partial(multiply, x, pack(torch.randn(40, 8).bfloat16()), None),
        partial(multiply, x, weight, torch.randn(39)),
        partial(multiply, x, weight, torch.randn(40).bfloat16()),
        partial(multiply, x, gated, None),
        partial(kernels.packed_gated_linear, x, weight, None, "silu"),
        partial(kernels.packed_gated_linear, x, gated, torch.randn(20), "silu"),
        partial(kernels.packed_grouped_gemm, x, weight, torch.tensor([0, 3, 3])),
    ):
        with pytest.raises(ValueError):
            call()
    strided = torch.randn(40, 2)[:, 0]
    assert torch.equal(multiply(x, weight, strided), multiply(x, weight, strided.clone()))
    assert multiply(x, pack(torch.randn(0, 8)), None).shape == (3, 0)


@pytest.mark.parametrize("starts", [[0, 3], [0, 3, FAR], [-FAR, 3, 3], [0, 1, 2], [0, 4, 3], [1, 2, 3]])
def test_groups_are_of_the_rows_that_are_there(kernels, starts):
    with pytest.raises(ValueError, match="group_starts"):
        kernels.packed_grouped_gemm(torch.randn(3, 8), pack(torch.randn(2, 4, 8)), torch.tensor(starts))


@pytest.mark.parametrize("index", [40, FAR, -1, -FAR])
def test_rows_are_taken_only_of_those_that_are_there(kernels, index):
    with pytest.raises(IndexError, match=r"outside \[0, 40\)"):
        kernels.packed_embedding(pack(torch.randn(40, 8)), torch.tensor([index]), torch.float32)
    with pytest.raises(IndexError, match=r"outside \[0, 40\)"):
        kernels.moe_combine(torch.randn(40, 8), torch.tensor([[0, index]]), torch.ones(1, 2))


def test_what_works_on_rows_takes_parameters_of_their_width(kernels):
    x, short, other = torch.randn(5, 64), torch.randn(1), torch.randn(64).bfloat16()
    for weight in (short, other):
        for call in (
            partial(kernels.rms_norm, x, weight, 1e-5),
            partial(kernels.add_rms_norm, x, x.clone(), weight, 1e-5),
            partial(kernels.layer_norm, x, weight, torch.randn(64), 1e-5),
            partial(kernels.layer_norm, x, torch.randn(64), weight, 1e-5),
            partial(kernels.rotary_embedding, x[:, None], weight[None], weight[None]),
            partial(kernels.add_rms_norm, x, torch.zeros(1, 64), torch.randn(64), 1e-5),
            partial(kernels.moe_combine, x, torch.zeros(9, 2), weight[None]),
            partial(kernels.silu_and_mul, x[:, :63]),
            partial(kernels.gelu, x[None]),
            partial(kernels.argmax, x[0]),
        ):
            with pytest.raises(ValueError):
                call()
    strided = torch.randn(64, 2)[:, 0]
    assert torch.equal(kernels.rms_norm(x, strided, 1e-5), kernels.rms_norm(x, strided.clone(), 1e-5))
    assert torch.equal(kernels.layer_norm(x, strided, strided, 0.1), kernels.layer_norm(x, *[strided.clone()] * 2, 0.1))


def test_layers_take_steps_within_their_caches_and_tables(kernels):
    model = RandomStack(StackCase(), torch.float32, torch.float32)
    stack, x = model.packed(kernels), torch.randn(5, 48)
    good = make_step([(0, 0, 5)])
    assert stack.run(x, good).shape == (5, 48)
    for name, value in (
        ("positions", good.positions + FAR),
        ("positions", good.positions - 1),
        ("positions", good.positions[:4]),
        ("slot_mapping", good.slot_mapping + FAR),
        ("slot_mapping", good.slot_mapping[:4]),
        ("block_tables", good.block_tables + FAR),
        ("block_tables", good.block_tables[:0]),
        ("seq_lens", good.seq_lens + FAR),
        ("cu_seqlens_q", good.cu_seqlens_q * FAR),
    ):
        with pytest.raises((IndexError, ValueError)):
            stack.run(x, type(good)(**{**vars(good), name: value}))
    for wrong in (x[:4], x[:, :40], x.bfloat16()):
        with pytest.raises(ValueError):
            stack.run(wrong, good)
    for wrong_cache in (cache(torch.bfloat16), cache(num_heads=3), cache(head_dim=64)):
        with pytest.raises(ValueError):
            stack.bind([wrong_cache] * 2, model.cos, model.sin)
    with pytest.raises(ValueError):
        stack.bind([cache()] * 2, model.cos.bfloat16(), model.sin.bfloat16())


def test_tokens_of_a_block_stand_together_without_rest():
    with pytest.raises(ValueError, match="3 tokens"):
        allocate_kv_cache(4, 3, 2, 16, torch.bfloat16, CPU)
