"""Embeddings of images beside transformers: windows that are cut off, layers that see all, both families."""

import numpy as np
import pytest
import torch

from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.images.prompts import ImagePrompts
from rayinfer.images.shapes import PatchGrid
from rayinfer.images.worker import decode_image
from rayinfer.models.vision.image_model import load_image_model, random_image_model
from support.golden.decoder_runs import CLOSE, CPU
from support.tiny_models.tiny_checkpoints import change_config
from support.tiny_models.tiny_qwen_vision import FAMILIES, IMAGE, TransformersQwenVision, make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import encoded, picture_of

SIDES = [(48, 48), (24, 20), (100, 40), (40, 100), (300, 7), (3, 3)]


def pixels_of(image, prompts):
    return torch.tensor(np.asarray(decode_image(encoded(image), prompts.shape)))


def load(folder, dtype=torch.float32):
    prompts = ImagePrompts.from_folder(folder)
    return load_image_model(folder, prompts, 64, dtype, CPU), prompts


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_those_of_transformers(family, tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path, family=family)
    theirs, (model, prompts) = TransformersQwenVision(folder, family=family), load(folder)
    images = [picture_of(width, height, shift) for shift, (width, height) in enumerate(SIDES)]
    inputs = theirs.inputs(IMAGE * len(images), images)
    embeddings = [model.encode(pixels_of(image, prompts)) for image in images]
    torch.testing.assert_close(torch.cat(embeddings), theirs.embeddings(inputs), **CLOSE)
    assert model.grid(pixels_of(images[2], prompts)) == PatchGrid(3, 9)
    assert torch.equal(embeddings[2], model.encode(pixels_of(images[2], prompts)))


def test_half_precision_stays_close(tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path)
    (exact, prompts), (rounded, _) = load(folder), load(folder, torch.bfloat16)
    pixels = pixels_of(picture_of(72, 50), prompts)
    wanted = exact.encode(pixels)
    assert (rounded.encode(pixels) - wanted).norm() < 0.05 * wanted.norm()


def test_random_weights_need_no_checkpoint(tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path)
    (folder / "model.safetensors").unlink()
    prompts = ImagePrompts.from_folder(folder)
    model = random_image_model(folder, prompts, 64, torch.float32, CPU)
    embeddings = model.encode(pixels_of(picture_of(16, 16), prompts))
    assert embeddings.shape == (4, 64)
    assert embeddings.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_act": "relu"}, UnsupportedArchitecture, "hidden_act 'relu' is not supported, only silu"),
        ({"num_heads": 3}, ModelLoadError, "32 is no multiple of 4 x 3 heads"),
        ({"in_channels": 1}, ModelLoadError, "in_channels must be 3"),
        ({"out_hidden_size": 32}, ModelLoadError, "width of 32, the language model's 64"),
        ({"fullatt_block_indexes": "all"}, ModelLoadError, "must be a list of layers"),
        ({"window_size": 4}, ModelLoadError, "window_size 4 is below 2 patches"),
        ({"depth": 4}, ModelLoadError, "lacks visual.blocks.3"),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused(changes, error, message, tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path)
    prompts = ImagePrompts.from_folder(folder)
    vision = {"depth": 3, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
    vision |= {"out_hidden_size": 64, "intermediate_size": 48, "window_size": 16, "fullatt_block_indexes": [1]}
    change_config(folder, vision_config=vision | changes)
    with pytest.raises(error, match=message):
        load_image_model(folder, prompts, 64, torch.float32, CPU)
