"""Tiles and tokens of images beside those of transformers' processor."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.images.prompts import ImagePrompts
from rayinfer.images.shapes import TiledShape, TileGrid
from rayinfer.images.worker import decode_image
from support.tiny_models.tiny_checkpoints import change_config, make_tiny_llama
from support.tiny_models.tiny_vision import (
    LONGEST_EDGE,
    TILE,
    TransformersVision,
    encoded,
    image_processor,
    make_tiny_vision_model,
    picture_of,
    size_of,
)

SIZES = [(72, 72), (24, 24), (10, 10), (100, 40), (40, 100), (300, 7), (7, 300), (71, 49), (1, 1), (500, 1), (23, 71)]
SHAPE = TiledShape(tile_side=TILE, longest_edge=LONGEST_EDGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def theirs(folder):
    return TransformersVision(folder)


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_tiles_are_those_of_transformers(width, height, splits):
    image = picture_of(width, height)
    shape = TiledShape(tile_side=TILE, longest_edge=LONGEST_EDGE, splits=splits)
    made = image_processor(splits=splits).preprocess([[image]], return_tensors="np")
    grid = shape.grid(height, width)
    assert grid == TileGrid(made["rows"][0][0], made["cols"][0][0])
    ours = np.asarray(decode_image(encoded(image), shape))
    assert ours.shape == (grid.num_tiles * TILE, TILE, 3)
    assert shape.is_result(*ours.shape[:2])
    tiles = ours.reshape(-1, TILE, TILE, 3).transpose(0, 3, 1, 2)
    np.testing.assert_allclose((tiles / 255 - 0.5) / 0.5, made["pixel_values"][0], atol=1e-6)


@pytest.mark.parametrize(
    "sides", [[(72, 72)], [(24, 20)], [(100, 40), (40, 100)], [(71, 49), (10, 10), (300, 7)]], ids=str
)
def test_tokens_are_those_of_transformers(sides, folder, theirs):
    images = [picture_of(*side, shift) for shift, side in enumerate(sides)]
    text = "Look: " + " and ".join("<image>" for _ in images) + " What is it?"
    prompts = ImagePrompts.from_folder(folder)
    written = prompts.expand(text, [size_of(image) for image in images], "prompt")
    ours = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(written, add_special_tokens=False).ids
    assert ours == theirs.inputs(text, images).token_ids
    num_embeddings = sum(prompts.num_embeddings(prompts.shape.grid(each.height, each.width)) for each in images)
    assert num_embeddings == written.count("<image>")


@pytest.mark.parametrize("text", ["none", "<image> two <image>"])
def test_each_image_needs_one_marker(text, folder):
    with pytest.raises(InvalidParameter, match=r"the marker <image> \d times, for 1 images"):
        ImagePrompts.from_folder(folder).expand(text, [size_of(picture_of(5, 5))], "prompt")


def test_a_model_of_texts_has_no_images(tmp_path):
    assert ImagePrompts.from_folder(make_tiny_llama(tmp_path)) is None


def test_settings_of_new_processors_are_read(folder, tmp_path):
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": settings, "image_seq_len": 9}))
    assert ImagePrompts.from_folder(tmp_path) == ImagePrompts.from_folder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_resize": False}, "do_resize must be true"),
        ({"max_image_size": {"longest_edge": 25}}, "25 is no multiple of patch_size 4"),
        ({"image_seq_len": 10}, "image_seq_len is 10, but a tile has 9"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std must be above 0"),
        ({"size": {"height": 3}}, "longest_edge must be a whole number"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(changes, message, folder, tmp_path):
    settings = json.loads((folder / "preprocessor_config.json").read_text()) | changes
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match=message):
        ImagePrompts.from_folder(tmp_path)


def test_a_folder_without_a_processor_is_refused(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    change_config(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no processor_config.json or preprocessor_config.json"):
        ImagePrompts.from_folder(tmp_path)


def test_a_tiled_image_is_refused_beyond_its_most_tiles():
    assert SHAPE.is_result(10 * TILE, TILE)
    assert not SHAPE.is_result(11 * TILE, TILE)
    assert not SHAPE.is_result(TILE, TILE + 1)
    assert not SHAPE.is_result(0, TILE)


def test_tiles_of_a_picture_with_alpha_are_those_of_its_colors():
    image = picture_of(50, 40)
    out = io.BytesIO()
    image.convert("RGBA").save(out, "PNG")
    assert decode_image(out.getvalue(), SHAPE).tobytes() == decode_image(encoded(image), SHAPE).tobytes()
    assert isinstance(image, Image.Image)
