"""Images through every protocol to a real classifier: encoded, as pixels and as normalized numbers, with one answer."""

import numpy as np
import pytest

from rayinfer import Predictor
from rayinfer.predictors.runners.image_processing import read_image_processing
from support.services.image_service import INFER, best_by_images_path, by_every_protocol, service_of
from support.tiny_models.tiny_images import picture, png, save_classifier


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    save_classifier(folder, "MobileNetV2")
    return folder


async def test_an_image_has_the_same_probabilities_in_every_form(classifier, tokenizer):
    pixels = picture(40, 50)
    numbers = read_image_processing(classifier).run(pixels)
    with Predictor(str(classifier)) as predictor:
        wanted, labels = predictor.predict_proba(pixels), predictor.description.labels
        assert predictor.predict_proba(numbers) == pytest.approx(wanted, abs=1e-6)
    async with service_of(classifier, tokenizer) as (client, kserve):
        for way, found in (await by_every_protocol(client, kserve, png(pixels), pixels, numbers)).items():
            assert found == pytest.approx(np.broadcast_to(wanted, found.shape), abs=1e-3), way
        best = await best_by_images_path(client, png(pixels))
        assert best["label"] == labels[wanted.argmax()]
        assert best["score"] == pytest.approx(wanted.max(), abs=1e-3)


async def test_tensors_that_are_no_image_are_refused(classifier, tokenizer):
    wrong = {
        "FP32": np.zeros((3, 16, 16), np.float32),  # of another size than the model's
        "UINT8": np.zeros((3, 16, 16), np.uint8),
        "INT32": np.zeros((16, 16, 3), np.int32),
    }
    async with service_of(classifier, tokenizer) as (client, _):
        for datatype, array in wrong.items():
            tensor = {"name": "pixels", "shape": array.shape, "datatype": datatype, "data": array.ravel().tolist()}
            response = await client.post(INFER, json={"inputs": [tensor]})
            assert response.status_code in (400, 422), response.text
            assert "3, " in response.text
