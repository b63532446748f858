"""`int8-dynamic` in every architecture: chunks and decoding stay near float32, over ranks and stages, too."""

from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
import torch

from rayinfer.layers.mixture_of_experts import MixtureOfExperts
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.tensor_parallel import UNSHARDED
from rayinfer_kernels import ops
from support.fakes.thread_ranks import run_threads
from support.golden.decoder_runs import CPU
from support.services.shared_runs import PROMPT, answer_of
from support.tiny_models.tiny_architectures import DECODERS

MODE = "int8-dynamic"
LEAST, MOST = 0.01, 0.08  # distance of logits from float32's, as a share of their size
ROUNDED_AGAIN = 1.1  # of that distance: how far ranks may lie from float32, which round parts of rows
ARCHITECTURES = (
    *("smollm3", "granite", "granite 4", "olmo2, one head of keys", "olmo3", "ministral3", "gemma3"),
    *("gpt-oss", "qwen3-moe", "mixtral"),
)


def load_quantized(folder, dtype, shard=UNSHARDED, *, cache, mode=MODE):
    return load_packed_decoder(folder, dtype, CPU, quantization=mode, cache=cache, shard=shard, worth_keeping_bytes=0)


def distance(got, wanted):
    """Return the median of positions: some tokens of a mixture go to other experts, where two are as probable."""
    return float(((got - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median())


def same_positions(answer, other):
    """Count the positions of which two answers have read the same tokens."""
    pairs = zip(answer.token_ids[:-1], other.token_ids[:-1], strict=True)
    return len(PROMPT) + len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_and_decoding_stay_near_float32_over_ranks_and_stages(name, tmp_path, compiled_kernels):
    folder = DECODERS[name](tmp_path / "model")
    load = partial(load_quantized, cache=PackedCache(tmp_path / "packed"))
    exact, whole = answer_of(folder), answer_of(folder, load=load)
    same = same_positions(whole, exact)
    rounded = distance(whole.logits[:same], exact.logits[:same])
    assert LEAST < rounded < MOST
    staged = answer_of(folder, num_stages=2, load=load)
    assert staged.token_ids == whole.token_ids
    torch.testing.assert_close(staged.logits, whole.logits, atol=1e-4, rtol=1e-4)
    for shared in run_threads(2, lambda group: answer_of(folder, group, load=load)):
        same = same_positions(shared, exact)
        assert distance(shared.logits[:same], exact.logits[:same]) < ROUNDED_AGAIN * rounded


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-moe"])
def test_experts_of_ranks_have_the_numbers_of_the_whole_model(name, tmp_path, compiled_kernels):
    folder = DECODERS[name](tmp_path / "model")
    load = partial(load_quantized, cache=PackedCache(tmp_path / "packed"), mode="int8")
    whole = answer_of(folder, load=load)
    for shared in run_threads(2, lambda group: answer_of(folder, group, load=load)):
        torch.testing.assert_close(shared.logits, whole.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("one_thread")
def test_routers_keep_their_numbers(tmp_path, compiled_kernels):
    folder: Path = DECODERS["gpt-oss"](tmp_path / "model")
    decoder = load_quantized(folder, torch.float32, cache=PackedCache(tmp_path / "packed"))
    mixtures = [module for module in decoder.modules() if isinstance(module, MixtureOfExperts)]
    assert mixtures
    for mixture in mixtures:
        assert mixture.gate.packed.format is ops.WeightFormat.FLOAT32
        assert mixture.experts.down_proj.packed.format is ops.WeightFormat.INT8_DYNAMIC
