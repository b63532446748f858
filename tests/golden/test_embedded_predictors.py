"""The embedded predictors; minilm_embeddings.json has what sentence-transformers 6.2 gives for its texts."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayinfer import Predictor
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.predictors.runners.image_processing import read_image_processing
from rayinfer.tokenization.tokenizer import Tokenizer
from support.services.image_service import best_by_images_path, by_every_protocol, service_of
from support.tiny_models.real_models import sample_image
from support.tiny_models.tiny_tokenizers import single_bytes

EXPECTED = json.loads((Path(__file__).parent / "minilm_embeddings.json").read_text())

pytestmark = pytest.mark.models


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 0.9999),
        ({"deterministic": True}, 0.9999),
        ({"dtype": "bfloat16"}, 0.999),
        ({"quantization": "int8-dynamic"}, 0.99),
    ],
)
def test_minilm_embeds_as_sentence_transformers_does(settings, least):
    with Predictor("all-minilm-l6-v2", **settings) as predictor:
        found = predictor.embed(EXPECTED["texts"], truncate=True)
    expected = np.array(EXPECTED["embeddings"])
    cosines = (found * expected).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() >= least
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]


def test_minilm_has_the_same_bits_in_every_batch():
    texts = EXPECTED["texts"]
    with Predictor("all-minilm-l6-v2", deterministic=True) as predictor:
        together = predictor.embed(texts, truncate=True)
        for text, vector in zip(texts, together, strict=True):
            assert predictor.embed(text, truncate=True).tobytes() == vector.tobytes()


def test_mobilenet_classifies_an_image():
    image = (np.indices((300, 400)).sum(0)[..., None] * [1, 2, 3] % 256).astype(np.uint8)
    with Predictor("mobilenet-v2") as predictor:
        probabilities = predictor.predict_proba(image)
        assert len(predictor.description.labels) == 1000
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert probabilities.max() > 20 / 1000  # far from equal: these are no random weights


async def test_a_photograph_of_a_cat_is_an_egyptian_cat_by_every_protocol():
    tokenizer = Tokenizer(single_bytes())
    folder, encoded = resolve_model("mobilenet-v2"), sample_image("chelsea.png")
    pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    numbers = read_image_processing(folder).run(pixels)
    async with service_of(folder, tokenizer, max_body_bytes=2**23) as (client, kserve):
        found = await by_every_protocol(client, kserve, encoded, pixels, numbers)
        for way, probabilities in found.items():
            assert (probabilities.argmax(-1) == 285).all(), way
            assert probabilities.max(-1) == pytest.approx(0.717, abs=0.002), way
        best = await best_by_images_path(client, encoded)
    assert best["label"] == "Egyptian cat"
    assert best["score"] == pytest.approx(0.717, abs=0.002)


def test_sentiment_tiny_distinguishes_praise_from_blame():
    texts = ["What a wonderful film, I loved every minute of it.", "Dull, badly acted and far too long."]
    with Predictor("sentiment-tiny") as predictor:
        assert predictor.predict_class(texts) == ["positive", "negative"]
        assert predictor.predict_proba(texts).sum(-1) == pytest.approx([1, 1], abs=1e-5)
