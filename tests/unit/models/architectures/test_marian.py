"""Logits and greedy tokens beside those of transformers, for every shape that a Marian checkpoint may have."""

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.marian import sinusoids
from rayinfer.models.loader import check_checkpoint
from rayinfer.models.model_config import read_model_config
from support.golden.encoder_decoder_runs import END, PAD, EncoderDecoderRun, make_tiny_marian, transformers_logits
from support.tiny_models.tiny_checkpoints import save_weights

SOURCES = [[(5 * i * i + 2) % 95 for i in range(length)] for length in (70, 1, 23)]
ANSWER = [PAD, *((3 * i * i + i + 7) % 95 for i in range(60))]
SHAPES = {
    "as published": {},
    "relu": {"activation_function": "relu"},
    "embedding not scaled": {"scale_embedding": False},
    "odd numbers of heads": {"d_model": 72, "encoder_attention_heads": 3, "decoder_attention_heads": 9},
    "more layers that decode": {"decoder_layers": 3, "decoder_ffn_dim": 60},
}
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.mark.parametrize("shape", SHAPES)
def test_sources_of_different_lengths_are_answered_as_transformers_answers_each(shape, tmp_path):
    folder = make_tiny_marian(tmp_path, **SHAPES[shape])
    run = EncoderDecoderRun(folder)
    run.read(dict(enumerate(SOURCES)))
    together = run.feed(*((row, ANSWER) for row in range(3)))
    for source, logits in zip(SOURCES, together, strict=True):
        torch.testing.assert_close(logits, transformers_logits(folder, source, ANSWER), **CLOSE)


def test_greedy_decoding_token_by_token_gives_the_tokens_of_transformers(tmp_path):
    folder = make_tiny_marian(tmp_path)
    run = EncoderDecoderRun(folder)
    run.read({2: SOURCES[2]})
    greedy = run.decode_greedily(2, PAD, 64)
    theirs = transformers_logits(folder, SOURCES[2], greedy.token_ids)
    torch.testing.assert_close(greedy.logits, theirs, **CLOSE)
    assert theirs[:-1].argmax(-1).tolist() == greedy.token_ids[1:]


@pytest.mark.parametrize("width", [64, 33])
def test_positions_are_those_of_transformers(width):
    theirs = MarianSinusoidalPositionalEmbedding(50, width).create_weight()
    torch.testing.assert_close(sinusoids(50, width), theirs, atol=1e-6, rtol=1e-6)


def test_checkpoints_may_hold_positions_and_copies_of_the_embedding(tmp_path):
    folder = make_tiny_marian(tmp_path)
    weights = load_file(folder / "model.safetensors")
    embedding = weights.pop("model.shared.weight")
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = embedding.clone()
    weights["model.encoder.embed_positions.weight"] = torch.ones(160, 64)
    save_weights(folder, weights)
    check_checkpoint(folder)


def test_how_answers_begin_and_end_comes_from_the_generation_config(tmp_path):
    config = read_model_config(make_tiny_marian(tmp_path))
    assert config.eos_token_ids == (END,)
    assert config.seq2seq.start_token_id == PAD
    assert config.seq2seq.bad_token_sequences == ((PAD,),)
    assert config.seq2seq.forced_end_token_id == END


def test_a_missing_tensor_is_named_in_the_checkpoints_own_words(tmp_path):
    folder = make_tiny_marian(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.1.encoder_attn.out_proj.bias"]
    save_weights(folder, weights)
    with pytest.raises(ModelLoadError, match=r"model\.decoder\.layers\.1\.encoder_attn\.out_proj\.bias"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"share_encoder_decoder_embeddings": true', '"share_encoder_decoder_embeddings": false'), "one embedding"),
        (('"tie_word_embeddings": true', '"tie_word_embeddings": false'), "one embedding"),
        (('"swish"', '"mish"'), "mish"),
        (('"encoder_attention_heads": 4', '"encoder_attention_heads": 5'), "encoder_attention_heads 5"),
    ],
)
def test_what_the_class_cannot_do_is_refused(tmp_path, change, message):
    folder = make_tiny_marian(tmp_path)
    config = (folder / "config.json").read_text()
    assert change[0] in config
    (folder / "config.json").write_text(config.replace(*change))
    with pytest.raises(UnsupportedArchitecture, match=message):
        check_checkpoint(folder)


def test_a_config_without_the_token_that_begins_answers_is_refused(tmp_path):
    folder = make_tiny_marian(tmp_path)
    for name in ("config.json", "generation_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("decoder_start_token_id", "unknown"))
    with pytest.raises(ModelLoadError, match="decoder_start_token_id"):
        read_model_config(folder)
