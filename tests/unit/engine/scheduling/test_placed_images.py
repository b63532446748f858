"""Positions of prompts with images beside those of transformers."""

import numpy as np
import pytest

from rayinfer.engine.scheduling.placed_images import placed_images
from rayinfer.errors import InvalidParameter
from rayinfer.images.headers import ImageSize
from rayinfer.images.prompts import ImagePrompts
from support.tiny_models.tiny_qwen_vision import IMAGE, TransformersQwenVision, make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import picture_of


def placed(token_ids, grids, image_token_id=9):
    embeddings = tuple(np.zeros((grid.num_embeddings, 2), np.float32) for grid in grids)
    return placed_images(np.array(token_ids, np.int32), embeddings, image_token_id, grids)


def test_positions_are_those_of_transformers(tmp_path):
    folder = make_tiny_qwen_vision_model(tmp_path)
    prompts, theirs = ImagePrompts.from_folder(folder), TransformersQwenVision(folder)
    sides = [(48, 48), (100, 40), (7, 300), (9, 9)]
    for text in (f"Look: {IMAGE} and {IMAGE}{IMAGE}, then {IMAGE}?", IMAGE * 4 + " What is it?"):
        inputs = theirs.inputs(text, [picture_of(*side) for side in sides])
        grids = [prompts.shape.grid(size.height, size.width) for size in (ImageSize(*side) for side in sides)]
        images = placed(inputs.token_ids, grids, theirs.model.config.image_token_id)
        wanted = theirs.positions(inputs).numpy()
        num_known = images.rope_positions.shape[1]
        assert num_known == images.positions[-1] + 1
        assert (images.rope_positions == wanted[:, :num_known]).all()
        behind = np.arange(num_known, len(inputs.token_ids)) + images.rope_delta
        assert (wanted[:, num_known:] == behind).all()


def test_tokens_of_models_with_one_position_may_be_apart():
    images = placed_images(np.array([9, 1, 9], np.int32), (np.zeros((2, 4), np.float32),), 9)
    assert images.rope_positions is None
    assert images.positions.tolist() == [0, 2]


def test_an_image_needs_as_many_tokens_as_it_has_embeddings():
    with pytest.raises(InvalidParameter, match="the prompt has 1 tokens for images, whose sizes make 2"):
        placed_images(np.array([9, 1], np.int32), (np.zeros((2, 4), np.float32),), 9)
