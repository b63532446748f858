"""Sizes, pixels and tokens of images that are cut into patches, beside those of transformers' processor."""

import json

import numpy as np
import pytest

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.images.decoding import ImageDecoder
from rayinfer.images.headers import ImageSize
from rayinfer.images.prompts import ImagePrompts
from rayinfer.images.shapes import PatchedShape
from rayinfer.images.worker import RefusedImage, decode_image
from support.tiny_models.tiny_qwen_vision import (
    MAX_PIXELS,
    MERGE,
    MIN_PIXELS,
    PATCH,
    image_processor,
    make_tiny_qwen_vision_model,
)
from support.tiny_models.tiny_vision import encoded, picture_of

SIZES = [(48, 48), (16, 16), (1, 1), (5, 9), (100, 40), (40, 100), (300, 7), (7, 300), (199, 1), (71, 49), (20, 12)]
SHAPE = PatchedShape(unit=PATCH * MERGE, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_qwen_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels_are_those_of_transformers(width, height, folder):
    image = picture_of(width, height)
    made = image_processor()(images=[image], return_tensors="np")
    prompts = ImagePrompts.from_folder(folder)
    assert prompts.shape == SHAPE
    ours = np.asarray(decode_image(encoded(image), SHAPE))
    _, num_rows, num_columns = made["image_grid_thw"][0]
    assert ours.shape == (num_rows * PATCH, num_columns * PATCH, 3)
    assert SHAPE.is_result(*ours.shape[:2])
    assert prompts.num_tokens(ImageSize(width, height)) == num_rows * num_columns // MERGE**2
    squares = (num_rows // MERGE, MERGE, PATCH, num_columns // MERGE, MERGE, PATCH, 3)
    patches = ours.reshape(squares).transpose(0, 3, 1, 4, 6, 2, 5).reshape(len(made["pixel_values"]), 3, -1)
    values = (patches / 255 - np.array(prompts.mean)[:, None]) / np.array(prompts.deviation)[:, None]
    np.testing.assert_allclose(
        np.repeat(values[:, :, None], 2, 2).reshape(len(values), -1), made["pixel_values"], atol=1e-5
    )


def test_a_process_answers_with_any_size(folder):
    decoder = ImageDecoder(SHAPE)
    try:
        assert decoder.submit(encoded(picture_of(300, 7))).result().shape == (8, 312, 3)
    finally:
        decoder.close()


def test_an_image_is_written_as_often_as_it_has_squares(folder):
    text = ImagePrompts.from_folder(folder).expand("<|image_pad|>, then <|image_pad|>!", [ImageSize(16, 16)] * 2, "p")
    assert text == "<|image_pad|>" * 4 + ", then " + "<|image_pad|>" * 4 + "!"


def test_an_image_of_one_line_is_refused(folder):
    with pytest.raises(InvalidParameter, match="prompt: of an image one side may be 200 times as long"):
        ImagePrompts.from_folder(folder).expand("<|image_pad|>", [ImageSize(201, 1)], "prompt")
    with pytest.raises(RefusedImage, match="200 times as long as the other, got 201 x 1"):
        decode_image(encoded(picture_of(201, 1)), SHAPE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_resize": False}, "do_resize must be true"),
        ({"patch_size": 14}, "patch_size is 14, but the model's is 4"),
        ({"merge_size": 3}, "merge_size is 3, but the model's is 2"),
        ({"max_pixels": -4}, "max_pixels must be a whole number above 0"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(changes, message, folder, tmp_path):
    settings = json.loads((folder / "preprocessor_config.json").read_text()) | changes
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match=message):
        ImagePrompts.from_folder(tmp_path)


def test_older_settings_of_the_number_of_pixels_are_read(folder, tmp_path):
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    del settings["size"]
    settings |= {"min_pixels": 64, "max_pixels": 640}
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert ImagePrompts.from_folder(tmp_path).shape == PatchedShape(unit=8, min_pixels=64, max_pixels=640)
