"""Ranks and stages beside the whole model: the same logits and greedy tokens, whatever the numbers of heads."""

import pytest
import torch
from transformers import LlamaConfig, MixtralConfig

from rayinfer.errors import ConfigError
from rayinfer.models.loader import empty_decoder, load_decoder
from rayinfer.tensor_parallel import Alone, Place, Share
from shared_runs import answer_of
from thread_ranks import run_threads
from tiny_architectures import DECODERS, ENCODER_DECODERS
from tiny_models import make_tiny_llama, make_tiny_model

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
# T5's scores are not scaled, so rounding grows.
T5_CLOSE = {"atol": 5e-4, "rtol": 1e-4}
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Ranks are threads here, and have none of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_shares_answer_like_the_whole(folder, num_ranks, num_stages=1, close=CLOSE):
    with torch.inference_mode():
        whole = answer_of(folder)
    for shared in run_threads(num_ranks, lambda group: answer_of(folder, group, num_stages)):
        torch.testing.assert_close(shared.logits, whole.logits, **close)
        assert shared.token_ids == whole.token_ids


@pytest.mark.parametrize("name", DECODERS)
def test_two_ranks_in_two_stages_answer_like_one(name, tmp_path):
    assert_shares_answer_like_the_whole(DECODERS[name](tmp_path), 2, 2)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_two_ranks_of_an_encoder_decoder_answer_like_one(name, tmp_path):
    close = T5_CLOSE if name.startswith("t5") else CLOSE
    assert_shares_answer_like_the_whole(ENCODER_DECODERS[name](tmp_path), 2, close=close)


@pytest.mark.parametrize(
    ("num_ranks", "num_heads", "num_kv_heads"),
    [(3, 8, 8), (3, 9, 3), (3, 8, 2), (4, 10, 1), (5, 6, 2), (4, 4, 2)],
)
def test_heads_need_not_divide_evenly(num_ranks, num_heads, num_kv_heads, tmp_path):
    shape = {"hidden_size": 16 * num_heads, "num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    shape |= {"num_hidden_layers": 2, "vocab_size": 101, "intermediate_size": 84, "max_position_embeddings": 256}
    assert_shares_answer_like_the_whole(make_tiny_model(tmp_path, LlamaConfig(**shape)), num_ranks)
