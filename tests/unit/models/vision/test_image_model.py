"""Embeddings of images, and logits behind them, beside transformers."""

import pytest
import torch

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.images.prompts import ImagePrompts
from rayinfer.images.worker import decode_image
from rayinfer.models.vision.image_model import load_image_model, random_image_model
from support.golden.decoder_runs import CLOSE, CPU, DecoderRun
from support.tiny_models.tiny_checkpoints import change_config
from support.tiny_models.tiny_vision import TransformersVision, encoded, make_tiny_vision_model, picture_of

SIDES = [(72, 72), (24, 20), (100, 40), (40, 100), (300, 7)]


def pixels_of(image, prompts):
    return torch.frombuffer(bytearray(decode_image(encoded(image), prompts.shape).tobytes()), dtype=torch.uint8).view(
        -1, prompts.shape.tile_side, 3
    )


def load(folder, dtype=torch.float32):
    prompts = ImagePrompts.from_folder(folder)
    return load_image_model(folder, prompts, 64, dtype, CPU), prompts


@pytest.mark.parametrize(("family", "splits", "tie"), [("idefics3", True, False), ("smolvlm", False, True)])
def test_embeddings_and_logits_are_those_of_transformers(family, splits, tie, tmp_path):
    folder = make_tiny_vision_model(tmp_path, family=family, splits=splits, tie=tie)
    theirs = TransformersVision(folder, family=family, splits=splits)
    model, prompts = load(folder)
    for shift, (width, height) in enumerate(SIDES):
        images = [picture_of(width, height, shift), picture_of(30, 30)]
        inputs = theirs.inputs("What is <image> beside <image>?", images)
        embeddings = torch.cat([model.encode(pixels_of(image, prompts)) for image in images])
        torch.testing.assert_close(embeddings, theirs.embeddings(inputs), **CLOSE)
        torch.testing.assert_close(
            logits_of(folder, inputs.token_ids, embeddings, model), theirs.logits(inputs), **CLOSE
        )


def logits_of(folder, token_ids, embeddings, model):
    run = DecoderRun(folder)
    ids = torch.tensor(token_ids, dtype=torch.int32)
    with torch.inference_mode():
        hidden = run.decoder.embed_tokens(ids)
        hidden[ids == model.image_token_id] = embeddings
    (logits,) = run.feed((0, token_ids), hidden=hidden)
    return logits


def test_an_image_is_encoded_to_the_same_bits_each_time(tmp_path):
    model, prompts = load(make_tiny_vision_model(tmp_path))
    pixels = pixels_of(picture_of(72, 50), prompts)
    assert torch.equal(model.encode(pixels), model.encode(pixels.clone()))


def test_half_precision_stays_close(tmp_path):
    folder = make_tiny_vision_model(tmp_path)
    exact, prompts = load(folder)
    rounded, _ = load(folder, torch.bfloat16)
    pixels = pixels_of(picture_of(72, 50), prompts)
    ours = rounded.encode(pixels)
    assert ours.dtype == torch.float32
    assert (ours - exact.encode(pixels)).norm() < 0.05 * exact.encode(pixels).norm()


def test_random_weights_need_no_checkpoint(tmp_path):
    folder = make_tiny_vision_model(tmp_path)
    (folder / "model.safetensors").unlink()
    prompts = ImagePrompts.from_folder(folder)
    embeddings = random_image_model(folder, prompts, 64, torch.float32, CPU).encode(
        pixels_of(picture_of(9, 9), prompts)
    )
    assert embeddings.shape == (90, 64)
    assert embeddings.isfinite().all()


@pytest.mark.parametrize(
    ("vision", "error", "message"),
    [
        ({"hidden_act": "relu"}, UnsupportedArchitecture, "hidden_act 'relu' is not supported"),
        ({"num_attention_heads": 5}, ModelLoadError, "32 is no multiple of 5 heads"),
        ({"num_channels": 1}, ModelLoadError, "num_channels must be 3"),
        ({"num_hidden_layers": 3}, ModelLoadError, "lacks vision_model.encoder.layers.2"),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused(vision, error, message, tmp_path):
    folder = make_tiny_vision_model(tmp_path)
    prompts = ImagePrompts.from_folder(folder)
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    change_config(folder, vision_config=config | {"image_size": 24, "patch_size": 4} | vision)
    with pytest.raises(error, match=message):
        load_image_model(folder, prompts, 64, torch.float32, CPU)
