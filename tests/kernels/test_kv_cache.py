import psutil
import pytest
import torch

from rayinfer_kernels import ops, reference


def test_a_pool_takes_no_memory_before_it_is_written_to():
    process = psutil.Process()
    before = process.memory_info().rss
    cache = ops.allocate_kv_cache(4096, 16, 8, 64, torch.float32, torch.device("cpu"))
    assert cache.num_blocks * ops.kv_block_bytes(16, 8, 64, torch.float32) == 256 << 20
    assert process.memory_info().rss - before < 32 << 20
    assert not cache.key[::512].any()


def test_a_block_of_eight_bits_counts_its_scales():
    cache = ops.allocate_kv_cache(4, 16, 3, 40, torch.int8, torch.device("cpu"))
    assert sum(tensor.nbytes for tensor in cache.tensors) == 4 * ops.kv_block_bytes(16, 3, 40, torch.int8)
    assert ops.kv_block_bytes(16, 3, 40, torch.int8) == 2 * 16 * 3 * (48 + 4)


def test_a_pool_can_be_empty():
    assert ops.allocate_kv_cache(0, 16, 2, 8, torch.bfloat16, torch.device("cpu")).num_blocks == 0


GPU = torch.device("cuda")


def test_the_reference_reads_both_layouts_alike():
    paged, vnni = (
        ops.allocate_kv_cache(5, 16, 2, 24, torch.float32, torch.device("cpu"), computed_on=on) for on in (GPU, None)
    )
    key, value, query = (torch.randn(37, heads, 24) for heads in (2, 2, 4))
    order = torch.tensor([[3, 0, 4]])
    slot_mapping = (order[0, torch.arange(37) // 16] * 16 + torch.arange(37) % 16).long()
    answers = []
    for cache in (paged, vnni):
        reference.write_kv(key, value, cache, slot_mapping)
        starts, lengths = torch.tensor([0, 37]), torch.tensor([37])
        answers.append(reference.paged_attention(query, cache, order, starts, lengths, 0.3, window=20))
    torch.testing.assert_close(*answers)
    assert paged.key.shape == (5, 2, 16, 24)


def test_nothing_is_stored_at_slot_minus_one():
    cache = ops.allocate_kv_cache(2, 16, 1, 16, torch.float32, torch.device("cpu"), computed_on=GPU)
    ones = torch.ones(2, 1, 16)
    cache.write(ones, ones, torch.tensor([-1, 3]))
    assert cache.key.sum() == cache.key[0, 0, 3].sum() == 16


def test_eight_bits_saturate():
    cache = ops.allocate_kv_cache(1, 16, 1, 16, torch.float8_e4m3fn, torch.device("cpu"), computed_on=GPU)
    row = torch.tensor([1e4, -1e4, 3.0, float("nan")]).repeat(4)[None, None]
    cache.write(row, row, torch.tensor([0]))
    assert cache.key[0, 0, 0, :3].tolist() == [448.0, -448.0, 3.0]
    assert cache.key[0, 0, 0, 3].isnan()


def test_a_type_that_no_gpu_reads_is_refused():
    with pytest.raises(ValueError, match=r"torch\.int8"):
        ops.allocate_kv_cache(1, 16, 1, 16, torch.int8, torch.device("cpu"), computed_on=GPU)


def test_blocks_of_a_processor_need_no_pinned_memory():
    with pytest.raises(ValueError, match="pinned"):
        ops.allocate_kv_cache(1, 16, 1, 16, torch.float32, torch.device("cpu"), pinned=True)


def test_a_block_counts_the_bytes_of_its_layout():
    assert ops.kv_block_bytes(16, 3, 40, torch.bfloat16, GPU) == 2 * 16 * 3 * 40 * 2
    assert ops.kv_block_bytes(16, 3, 40, torch.bfloat16) == 2 * 16 * 3 * 48 * 2
