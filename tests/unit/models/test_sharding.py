"""Ranks and stages beside the whole model: the same logits and greedy tokens, whatever the numbers of heads."""

import pytest
import torch
from transformers import LlamaConfig

from rayinfer.errors import ConfigError
from rayinfer.models.loader import empty_decoder
from rayinfer.tensor_parallel import UNSHARDED, RankCoordinates, Shard, SingleRankGroup
from support.fakes.thread_ranks import Table, ThreadGroup, run_threads
from support.golden.encoder_decoder_runs import make_tiny_marian, make_tiny_t5
from support.services.shared_runs import answer_of
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS
from support.tiny_models.tiny_checkpoints import make_tiny_llama, make_tiny_model

CLOSE = {"atol": 1e-4, "rtol": 0.0}
TINY = {"num_hidden_layers": 2, "vocab_size": 101, "intermediate_size": 84, "max_position_embeddings": 256}

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_shares_answer_like_the_whole(folder, num_ranks, num_stages=1):
    with torch.inference_mode():
        whole = answer_of(folder)
    for shared in run_threads(num_ranks, lambda group: answer_of(folder, group, num_stages)):
        torch.testing.assert_close(shared.logits, whole.logits, **CLOSE)
        assert shared.token_ids == whole.token_ids


@pytest.mark.parametrize("name", DECODERS)
def test_two_ranks_in_two_stages_answer_like_one(name, tmp_path):
    assert_shares_answer_like_the_whole(DECODERS[name](tmp_path), 2, 2)


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt2", "llama, tied, one head of keys"])
def test_three_ranks_answer_like_one(name, tmp_path):
    assert_shares_answer_like_the_whole(DECODERS[name](tmp_path), 3)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_two_ranks_of_an_encoder_decoder_answer_like_one(name, num_stages, tmp_path):
    assert_shares_answer_like_the_whole(ENCODER_DECODERS[name](tmp_path), 2, num_stages)


def test_shares_of_a_t5_with_wide_queries_are_as_far_from_twice_the_precision_as_the_whole(tmp_path):
    # Scores of tens, which nothing scales: float32 itself is 1.6e-4 off in logits of up to 3, as a whole and in shares.
    folder = make_tiny_t5(tmp_path, owns_head=True, feed_forward_proj="gated-gelu", query_width=0.25)
    with torch.inference_mode():
        whole, precise = answer_of(folder).logits, answer_of(folder, dtype=torch.float64).logits
    rounding = (whole - precise).abs().max()
    assert rounding < 4e-4
    for shared in run_threads(2, lambda group: answer_of(folder, group)):
        assert (shared.logits - precise).abs().max() < rounding + 1e-4


@pytest.mark.parametrize(
    ("num_ranks", "num_heads", "num_kv_heads"),
    [(3, 8, 8), (3, 9, 3), (3, 8, 2), (4, 10, 1), (5, 6, 2), (4, 4, 2)],
)
def test_heads_need_not_divide_evenly(num_ranks, num_heads, num_kv_heads, tmp_path):
    shape = {"hidden_size": 16 * num_heads, "num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    assert_shares_answer_like_the_whole(make_tiny_model(tmp_path, LlamaConfig(**TINY | shape)), num_ranks)


def test_stages_need_not_be_of_one_length(tmp_path):
    assert_shares_answer_like_the_whole(make_tiny_llama(tmp_path, layers=5, tie=False), 1, 3)


def test_stages_need_not_have_layers_of_an_encoder(tmp_path):
    assert_shares_answer_like_the_whole(make_tiny_t5(tmp_path, num_layers=2, num_decoder_layers=4), 1, 3)


def test_an_encoder_may_have_more_layers_than_its_decoder(tmp_path):
    assert_shares_answer_like_the_whole(make_tiny_marian(tmp_path, encoder_layers=5, decoder_layers=2), 1, 2)


@pytest.mark.parametrize("name", ["llama", "mixtral", "llama, tied, one head of keys"])
def test_it_holds_with_the_compiled_kernels(name, tmp_path, compiled_kernels):
    assert_shares_answer_like_the_whole(DECODERS[name](tmp_path), 2, 2)


def num_numbers(folder, shard):
    return sum(parameter.numel() for parameter in empty_decoder(folder, shard).parameters())


@pytest.mark.parametrize(
    ("make", "settings", "num_shared"),
    [
        (make_tiny_t5, {"owns_head": True}, 2 * 8 * 4),  # biases of both sides
        (make_tiny_t5, {}, 2 * 8 * 4 + 96 * 64),  # the embedding is the head, too
        (make_tiny_marian, {}, 96 * 64),
    ],
)
def test_stages_hold_nothing_twice_but_what_all_need(make, settings, num_shared, tmp_path):
    folder = make(tmp_path, **settings)
    parts = [num_numbers(folder, Shard(RankCoordinates(stage, 1, 2), SingleRankGroup())) for stage in range(2)]
    assert sum(parts) == num_numbers(folder, UNSHARDED) + num_shared
    assert max(parts) < 0.65 * sum(parts)


def test_ranks_hold_parts_that_make_up_the_whole(tmp_path):
    folder = make_tiny_llama(tmp_path, tie=False, vocab_size=385)

    table = Table(2)
    groups = [ThreadGroup(rank, 2, table) for rank in range(2)]
    parts = [num_numbers(folder, Shard(RankCoordinates(rank, 2, 2), groups[rank % 2])) for rank in range(4)]
    whole = num_numbers(folder, UNSHARDED)
    norms = 5 * 64  # every tensor rank has all of its stage's
    assert sum(parts) == whole + norms
    assert max(parts) < 0.27 * whole


@pytest.mark.parametrize(
    ("num_ranks", "settings", "message"),
    [
        (3, {"num_key_value_heads": 2, "num_attention_heads": 2}, "3 ranks are too many for 2 attention heads"),
        (3, {"num_key_value_heads": 1, "intermediate_size": 2, "num_attention_heads": 4}, "3 ranks are too many for 2"),
        (3, {"num_key_value_heads": 1, "vocab_size": 2, "num_attention_heads": 4}, "3 ranks are too many for 2 tokens"),
    ],
)
def test_too_many_ranks_are_refused(num_ranks, settings, message, tmp_path):
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
    folder = make_tiny_model(tmp_path, LlamaConfig(**TINY | shape | settings))
    shard = Shard(RankCoordinates(0, num_ranks), ThreadGroup(0, num_ranks, Table(num_ranks)))
    with pytest.raises(ConfigError, match=message):
        empty_decoder(folder, shard)


@pytest.mark.parametrize("make", [make_tiny_llama, make_tiny_t5])
def test_more_stages_than_layers_are_refused(make, tmp_path):
    folder = make(tmp_path)
    with pytest.raises(ConfigError, match="3 ranks are too many for 2 layers"):
        empty_decoder(folder, Shard(RankCoordinates(1, 1, 3), SingleRankGroup()))
