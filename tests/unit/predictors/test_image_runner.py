"""Images: processing beside the numbers of transformers' processors, classification beside its models.

image_processing.json has what the Pillow processors of transformers 5.23 give for `picture`, every 29th row and 31st
column, as neither Pillow nor torchvision is needed here.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from rayinfer import Predictor
from rayinfer.errors import InvalidParameter, ModelLoadError, NotSupported
from rayinfer.predictors.runner import RunnerItem
from rayinfer.predictors.runners.image_processing import read_image_processing
from support.tiny_models.tiny_checkpoints import change_config

EXPECTED = json.loads((Path(__file__).parent / "image_processing.json").read_text())
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.6, 0.7],
}
CLASSIFIERS = {
    "MobileNetV2": {"depth_multiplier": 0.25, "image_size": 32},
    "ViT": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "image_size": 32,
        "patch_size": 8,
    },
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
}


def picture(height, width):
    rows, columns = np.indices((height, width))
    channels = np.arange(3)
    waves = rows[..., None] * (channels + 3) + columns[..., None] * (5 - channels)
    return ((waves + (rows * columns)[..., None] % (17 + channels)) % 256).astype(np.uint8)


def save_classifier(folder, family):
    config = getattr(transformers, f"{family}Config")(**CLASSIFIERS[family], id2label={0: "cat", 1: "dog", 2: "owl"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


@pytest.mark.parametrize("name", EXPECTED)
def test_pixels_are_those_of_transformers_processors(name, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(EXPECTED[name]["settings"]))
    processing = read_image_processing(tmp_path)
    for size, expected in EXPECTED[name]["images"].items():
        pixels = processing.run(picture(*map(int, size.split("x"))))
        assert list(pixels.shape) == expected["shape"]
        assert pixels[:, ::29, ::31].ravel() == pytest.approx(np.array(expected["values"]), abs=1e-4)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_logits_are_those_of_transformers(family, build, tmp_path):
    model = save_classifier(tmp_path, family)
    runner = build(tmp_path)
    images = [picture(40, 50), picture(64, 33)]
    results = runner.run([RunnerItem(task="classify", pixels=image, is_resized=False) for image in images])
    processing = read_image_processing(tmp_path)
    for image, logits in zip(images, results, strict=True):
        with torch.inference_mode():
            expected = model(torch.from_numpy(processing.run(image))[None]).logits[0].numpy()
        assert logits == pytest.approx(expected, abs=1e-4)
    resized = RunnerItem(task="classify", pixels=picture(32, 32))
    assert runner.run([resized])[0].tobytes() == runner.run([replace(resized, is_resized=False)])[0].tobytes()
    with pytest.raises(InvalidParameter, match="a resized image must be"):
        runner.run([RunnerItem(task="classify", pixels=images[0])])
    assert runner.description.labels == ("cat", "dog", "owl")
    assert (runner.description.image_size, runner.max_input_tokens) == (32, 0)


def test_a_predictor_names_the_class_of_an_image(build, tmp_path):
    save_classifier(tmp_path, "ViT")
    with Predictor(str(tmp_path)) as predictor:
        probabilities = predictor.predict_proba([picture(40, 50), picture(64, 33)])
        assert probabilities.sum(-1) == pytest.approx([1, 1])
        best = predictor.description.labels[probabilities[0].argmax()]
        assert predictor.predict_class(picture(40, 50)) == best
        assert predictor.classify([picture(40, 50)], top_k=1)[0][0].label == best
        for wrong in (None, b"JPEG", np.zeros((4, 4)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)):
            with pytest.raises(InvalidParameter):
                predictor.predict(wrong)
        with pytest.raises(NotSupported, match="embed is not for this model, which does classify"):
            predictor.embed("text")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "image processor 'CLIPImageProcessor'"),
        ({"resample": 1}, "resample must be 2"),
        ({"size": {"shortest_edge": 8}}, "many sizes"),
        ({"image_std": [0, 1, 1]}, "image_std"),
        ({"do_center_crop": True, "crop_size": 64}, "larger than size"),
        ({"do_resize": False}, "not resized"),
    ],
)
def test_image_settings_that_are_not_supported_are_named(changes, message, build, tmp_path):
    save_classifier(tmp_path, "ViT")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | changes))
    with pytest.raises(ModelLoadError, match=message):
        build(tmp_path)


def test_other_image_classifiers_are_named(build, tmp_path):
    save_classifier(tmp_path, "ViT")
    change_config(tmp_path, architectures=["SwinForImageClassification"])
    with pytest.raises(ModelLoadError, match="'SwinForImageClassification' is not supported"):
        build(tmp_path)
