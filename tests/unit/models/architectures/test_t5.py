"""Logits and greedy tokens beside those of transformers, for every shape that a T5 checkpoint may have."""

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.loader import check_checkpoint
from support.golden.encoder_decoder_runs import EncoderDecoderRun, make_tiny_t5, transformers_logits
from support.tiny_models.tiny_checkpoints import save_weights

SOURCES = [[(5 * i * i + 2) % 96 for i in range(length)] for length in (70, 1, 23)]
ANSWER = [0, *((3 * i * i + i + 7) % 96 for i in range(60))]
SHAPES = {
    "first version": {},
    "version 1.1": {"feed_forward_proj": "gated-gelu", "owns_head": True},
    "gated by silu": {"feed_forward_proj": "gated-silu"},
    "gelu": {"feed_forward_proj": "gelu"},
    "odd number of heads, wider than the model": {"num_heads": 9, "d_kv": 8},
    "more layers that decode": {"num_decoder_layers": 3},
    "far distances": {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    "another epsilon": {"layer_norm_epsilon": 1e-2},
}
# T5's scores are not scaled, so rounding grows: 2e-4 between one order of a kernel's sums and another.
CLOSE = {"atol": 5e-4, "rtol": 1e-4}


@pytest.mark.parametrize("shape", SHAPES)
def test_sources_of_different_lengths_are_answered_as_transformers_answers_each(shape, tmp_path):
    folder = make_tiny_t5(tmp_path, **SHAPES[shape])
    run = EncoderDecoderRun(folder)
    run.read(dict(enumerate(SOURCES)))
    together = run.feed(*((row, ANSWER) for row in range(3)))
    for source, logits in zip(SOURCES, together, strict=True):
        torch.testing.assert_close(logits, transformers_logits(folder, source, ANSWER), **CLOSE)


def test_greedy_decoding_token_by_token_gives_the_tokens_of_transformers(tmp_path):
    folder = make_tiny_t5(tmp_path)
    run = EncoderDecoderRun(folder)
    run.read({2: SOURCES[2]})
    greedy = run.decode_greedily(2, 0, 64)
    theirs = transformers_logits(folder, SOURCES[2], greedy.token_ids)
    torch.testing.assert_close(greedy.logits, theirs, **CLOSE)
    assert theirs[:-1].argmax(-1).tolist() == greedy.token_ids[1:]


def test_a_row_reads_its_latest_source(tmp_path):
    run = EncoderDecoderRun(make_tiny_t5(tmp_path))
    run.read({0: SOURCES[0], 1: SOURCES[2]})
    run.read({0: SOURCES[2]})
    again, first = run.feed((0, ANSWER), (1, ANSWER))
    assert torch.equal(again, first)


def test_old_checkpoints_hold_copies_of_the_embedding_and_a_bias_that_nothing_uses(tmp_path):
    folder = make_tiny_t5(tmp_path)
    weights = load_file(folder / "model.safetensors")
    embedding = weights["shared.weight"]
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = embedding.clone()
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(8, 4)
    save_weights(folder, weights)
    run = EncoderDecoderRun(folder)
    run.read({0: SOURCES[2]})
    (logits,) = run.feed((0, ANSWER))
    torch.testing.assert_close(logits, transformers_logits(folder, SOURCES[2], ANSWER), **CLOSE)


def test_a_missing_tensor_is_named_in_the_checkpoints_own_words(tmp_path):
    folder = make_tiny_t5(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["decoder.block.1.layer.2.DenseReluDense.wo.weight"]
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"decoder\.block\.1\.layer\.2\.DenseReluDense\.wo\.weight"):
        check_checkpoint(folder)


def test_an_unknown_feed_forward_is_refused(tmp_path):
    folder = make_tiny_t5(tmp_path)
    config = (folder / "config.json").read_text().replace('"relu"', '"gated-tanh"')
    (folder / "config.json").write_text(config)
    with pytest.raises(UnsupportedArchitecture, match="gated-tanh"):
        check_checkpoint(folder)
