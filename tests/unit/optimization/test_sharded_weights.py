"""Quantized shares beside the whole quantized model: its numbers, cut."""

import pytest
import torch

from rayinfer.layers.shards import ShardSlice
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.optimization.sharded_weights import shard_of
from rayinfer.tensor_parallel import UNSHARDED, RankCoordinates, Shard, SingleRankGroup
from rayinfer_kernels import ops
from support.fakes.thread_ranks import run_threads
from support.services.shared_runs import PROMPT, answer_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # Three heads of 24 channels: a rank's inputs begin within a group of 32.
    return make_tiny_llama(
        tmp_path_factory.mktemp("llama"), hidden=72, heads=3, kv_heads=3, tie=False, attention_bias=True,
        max_position_embeddings=64, intermediate_size=100, layers=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return PackedCache(tmp_path_factory.mktemp("cache"))


def prompt_logits(folder, cache, quantization, num_ranks, num_stages):
    """What all ranks compute for the prompt, which all models are given alike."""

    def load(folder, dtype, shard):
        return load_packed_decoder(
            folder, dtype, CPU, quantization=quantization, cache=cache, shard=shard, worth_keeping_bytes=0
        )

    answers = run_threads(num_ranks, lambda group: answer_of(folder, group, num_stages, load=load))
    return [answer.logits[: len(PROMPT)] for answer in answers]


def distance(logits, others):
    return float((logits - others).square().mean().sqrt())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("num_stages", [1, 2])
def test_rows_that_are_not_rounded_give_the_same_logits(num_stages, folder, cache):
    (whole,) = prompt_logits(folder, cache, "int8", 1, 1)
    for shared in prompt_logits(folder, cache, "int8", 2, num_stages):
        torch.testing.assert_close(shared, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("quantization", ["int8-dynamic", "int4"])
def test_rows_that_each_rank_rounds_for_itself_change_little(quantization, folder, cache):
    (exact,) = prompt_logits(folder, cache, None, 1, 1)
    (whole,) = prompt_logits(folder, cache, quantization, 1, 1)
    for shared in prompt_logits(folder, cache, quantization, 3, 1):
        assert distance(shared, whole) < (1.0 if quantization == "int8-dynamic" else 0.2) * distance(whole, exact)
        assert distance(shared, exact) < 1.1 * distance(whole, exact)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("quantization", ["int8-dynamic", "int4"])
def test_stages_of_one_rank_each_change_nothing(quantization, folder, cache):
    (whole,) = prompt_logits(folder, cache, quantization, 1, 1)
    (staged,) = prompt_logits(folder, cache, quantization, 1, 3)
    torch.testing.assert_close(staged, whole, atol=1e-4, rtol=1e-4)


def test_each_rank_has_an_entry_of_its_own_in_the_cache_and_finds_it_again(folder, tmp_path):
    cache = PackedCache(tmp_path)
    parts = [UNSHARDED, *(Shard(RankCoordinates(rank, 1, 2), SingleRankGroup()) for rank in range(2))]

    def load(shard):
        loaded = load_packed_decoder(
            folder, torch.float32, CPU, quantization=None, cache=cache, shard=shard, worth_keeping_bytes=0
        )
        return dict(loaded.named_parameters())

    first = [load(shard) for shard in parts]
    entries = {path for path in tmp_path.iterdir() if (path / "weights.safetensors").exists()}
    assert len(entries) == len(parts)
    for shard, before in zip(parts, first, strict=True):
        assert load(shard).keys() == before.keys()
    assert entries == {path for path in tmp_path.iterdir() if (path / "weights.safetensors").exists()}


@pytest.mark.parametrize("format", [ops.WeightFormat.INT8, ops.WeightFormat.INT4_DYNAMIC])
@pytest.mark.parametrize("columns", [range(0, 40), range(32, 96), range(40, 100), range(70, 80), range(96, 100)])
def test_parts_of_rows_stand_for_the_same_weight(format, columns):
    whole = ops.quantize(torch.randn(7, 100), format)
    part = shard_of(whole, ShardSlice(1, (columns,))).dequantize()
    num_before = part.shape[1] - len(columns)
    assert torch.equal(part[:, num_before:], whole.dequantize()[:, columns.start : columns.stop])
    assert not part[:, :num_before].any()


@pytest.mark.parametrize("columns", [range(0, 40), range(40, 100), range(96, 100)])
def test_parts_of_rows_and_of_inputs_keep_the_offsets_of_their_groups(columns):
    plain = ops.quantize(torch.randn(7, 100), ops.WeightFormat.INT4_DYNAMIC)
    scale_q, q = torch.randint(256, (7, 4), dtype=torch.uint8), torch.randint(-128, 128, (7, 4), dtype=torch.int8)
    offsets = ops.GroupOffsets(scale_q, q, torch.rand(7).bfloat16().float(), torch.randn(7).bfloat16().float())
    whole = ops.QuantizedWeight(plain.q, offsets.scales(), plain.format, offsets)
    part = shard_of(whole, ShardSlice(1, (columns,))).dequantize()
    assert torch.equal(part[:, -len(columns) :], whole.dequantize()[:, columns.start : columns.stop])
    assert torch.equal(shard_of(whole, ShardSlice(0, (range(2, 5),))).dequantize(), whole.dequantize()[2:5])


@pytest.mark.parametrize("format", [ops.WeightFormat.INT8, ops.WeightFormat.INT4_DYNAMIC])
def test_some_rows_stand_for_the_same_weight(format):
    whole = ops.quantize(torch.randn(12, 50), format)
    part = shard_of(whole, ShardSlice(0, (range(1, 4), range(6, 9)))).dequantize()
    assert torch.equal(part, whole.dequantize()[[1, 2, 3, 6, 7, 8]])


def test_eight_bits_are_chosen_for_whole_rows_though_only_a_part_is_there():
    weight = torch.randn(9, 64)
    part = ops.quantize(weight[:, :20], ops.WeightFormat.INT8, weight.abs().amax(1))
    assert torch.equal(part.q, ops.quantize(weight, ops.WeightFormat.INT8).q[:, :20])
