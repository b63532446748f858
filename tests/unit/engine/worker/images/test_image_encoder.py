"""Encoder of images: digests, its cache by bytes, sharing and failures."""

import gc

import numpy as np
import pytest
import torch

from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.errors import BadImage
from rayinfer.images.shapes import TiledShape
from rayinfer.predictions import ImageInput
from support.tiny_models.tiny_vision import encoded, picture_of

SHAPE = TiledShape(tile_side=8, longest_edge=16)
TIMEOUT_S = 60.0


class SumModel:
    """A model whose embeddings of a tile are its sum, four times."""

    image_token_id = 7

    def __init__(self):
        self.num_calls = 0
        self.error = None

    def encode(self, pixels):
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        sums = pixels.view(-1, 8 * 8 * 3).float().sum(1)
        return sums[:, None].expand(-1, 4).contiguous()

    def grid(self, pixels):
        return None


@pytest.fixture
def model():
    return SumModel()


@pytest.fixture
def encoder(model):
    encoder = ImageEncoder(lambda: model, SHAPE, cache_bytes=200)  # two images of 5 tiles and 16 bytes each
    yield encoder
    encoder.close()


def image(shift, side=16):
    return ImageInput.of(encoded(picture_of(side, side, shift)))


def test_images_are_encoded_in_their_order_and_once(encoder, model):
    one, other = image(0), image(1)
    first = encoder.encode([one, other, one])
    assert [each.embeddings.shape for each in first] == [(5, 4)] * 3
    assert first[0] is first[2]
    assert not np.array_equal(first[0].embeddings, first[1].embeddings)
    assert encoder.encode([other, one]) == [first[1], first[0]]
    assert model.num_calls == encoder.stats.encodings_total == 2


def test_what_is_started_is_found_without_computing(encoder, model):
    started = encoder.start([image(0), image(1), image(2)])  # more than the cache holds
    results = started.result(TIMEOUT_S)
    assert encoder.start([image(0), image(1), image(2)]) is None
    assert encoder.encode([image(0), image(1), image(2)]) == results
    assert model.num_calls == 3


def test_the_least_recently_used_image_is_forgotten(encoder, model):
    encoder.encode([image(0)])
    encoder.encode([image(1)])
    encoder.encode([image(0)])  # used again
    encoder.encode([image(2)])
    gc.collect()
    encoder.encode([image(0)])
    assert model.num_calls == 3
    encoder.encode([image(1)])
    assert model.num_calls == 4


def test_an_image_in_use_is_found_when_the_cache_has_forgotten_it(encoder, model):
    held = encoder.encode([image(0)])
    for shift in (1, 2, 3):
        encoder.encode([image(shift)])
    assert encoder.encode([image(0)]) == held
    assert model.num_calls == 4


def test_images_above_the_cache_are_not_kept(model):
    encoder = ImageEncoder(lambda: model, SHAPE, cache_bytes=50)
    encoder.encode([image(0)])
    encoder.encode([image(1)])  # the thread has dropped the first one's result by now
    gc.collect()
    encoder.encode([image(0)])
    assert model.num_calls == 3
    encoder.close()


def test_a_broken_image_is_refused_and_the_next_one_is_encoded(encoder):
    broken = ImageInput.of(encoded(picture_of(40, 40))[:60])
    started = encoder.start([image(0), broken])
    with pytest.raises(BadImage, match="broken"):
        started.result(TIMEOUT_S)
    with pytest.raises(BadImage, match="broken"):
        encoder.encode([broken])
    assert len(encoder.encode([image(1)])) == 1


def test_a_failure_of_the_model_is_the_images_error(encoder, model):
    model.error = RuntimeError("not enough memory")
    with pytest.raises(BadImage, match="could not be encoded: RuntimeError"):
        encoder.encode([image(0)])
    model.error = None
    assert len(encoder.encode([image(0)])) == 1


def test_release_forgets_embeddings_and_loads_the_model_again():
    models = []

    def load():
        models.append(SumModel())
        return models[-1]

    encoder = ImageEncoder(load, SHAPE)
    encoder.encode([image(0)])
    encoder.release()
    assert len(models) == 1
    encoder.encode([image(0)])
    assert [each.num_calls for each in models] == [1, 1]
    encoder.close()


def test_embeddings_are_those_of_the_decoded_tiles(encoder):
    (made,) = encoder.encode([image(0, side=8)])
    pixels = torch.tensor(np.asarray(picture_of(8, 8).resize((16, 16), 1)))
    assert made.embeddings[:, 0].tolist()[0] == float(pixels[:8, :8].sum())
