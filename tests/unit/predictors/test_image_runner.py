"""Images: processing beside the numbers of transformers' processors, classification beside its models.

image_processing.json has what the Pillow processors of transformers 5.23 give for `picture`, every 29th row and 31st
column, as neither Pillow nor torchvision is needed here.
"""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rayinfer import Predictor
from rayinfer.engine.worker.cores import usable_cores
from rayinfer.errors import BadImage, InvalidParameter, ModelLoadError, NotSupported
from rayinfer.images.decoding import ImageDecoder
from rayinfer.models.checkpoints.mobilenet_conversion import LABELS
from rayinfer.predictors.runner import RunnerItem
from rayinfer.predictors.runners.fused_convolutions import fuse_convolutions
from rayinfer.predictors.runners.image_processing import read_image_processing
from rayinfer.predictors.runners.image_runner import load_classifier
from support.tiny_models.tiny_checkpoints import change_config
from support.tiny_models.tiny_images import CLASSIFIERS, PROCESSOR, picture, png, save_classifier

EXPECTED = json.loads((Path(__file__).parent / "image_processing.json").read_text())


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
        for wrong in (None, "JPEG", np.zeros((4, 4)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)):
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


@pytest.mark.parametrize(("family", "same_padding"), [("MobileNetV2", False), ("MobileNetV2", True), ("ResNet", False)])
def test_fused_convolutions_have_the_numbers_of_their_layers(family, same_padding, tmp_path):
    save_classifier(tmp_path, family)
    change_config(tmp_path, **({"tf_padding": same_padding} if family == "MobileNetV2" else {}))
    draw = torch.Generator().manual_seed(3)
    image = torch.randn(1, 3, 32, 33 if family == "ResNet" else 32, generator=draw)
    model = load_classifier(tmp_path, torch.float32)
    for norm in (each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)):
        for numbers, least in (
            (norm.weight, 0.5),
            (norm.bias, -0.5),
            (norm.running_mean, -0.5),
            (norm.running_var, 0.5),
        ):
            numbers.data.uniform_(least, least + 1, generator=draw)
    for weight in (each.weight for each in model.modules() if isinstance(each, torch.nn.Conv2d | torch.nn.Linear)):
        weight.data.normal_(0, (2 / weight[0].numel()) ** 0.5, generator=draw)  # so that logits follow the image
    with torch.inference_mode():
        expected = model(pixel_values=image).logits
        fused = fuse_convolutions(model, tuple(image.shape[2:]))
        found = fused(pixel_values=image).logits
    assert not any(isinstance(each, torch.nn.BatchNorm2d) for each in fused.modules())
    assert expected.abs().max() > 0.1
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-4, rel=1e-4)


def test_convolutions_whose_numbers_would_differ_are_left_as_they_are(tmp_path, caplog):
    save_classifier(tmp_path, "ResNet")
    model = load_classifier(tmp_path, torch.float32)
    image = torch.ones(1, 3, 32, 32)
    for layer in (each for each in model.modules() if type(each).__name__ == "ResNetConvLayer"):
        layer.forward = lambda hidden, layer=layer: layer.activation(layer.normalization(layer.convolution(hidden))) + 1
    with torch.inference_mode():
        expected = model(pixel_values=image).logits
        assert torch.equal(fuse_convolutions(model, (32, 32))(pixel_values=image).logits, expected)
    assert "not fused" in caplog.text


def test_images_side_by_side_have_the_bits_of_one_alone(build, tmp_path):
    save_classifier(tmp_path, "MobileNetV2")
    before = torch.get_num_threads()
    runner = build(tmp_path, num_threads=2)
    try:
        assert runner.threads is not None
        items = [RunnerItem(task="classify", pixels=picture(40 + n, 50), is_resized=False) for n in range(7)]
        together = runner.run(items)
        assert [each.tobytes() for each in together] == [runner.run([item])[0].tobytes() for item in items]
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        runner.close()
        torch.set_num_threads(before)


def test_images_side_by_side_are_computed_on_cores_of_their_own(build, tmp_path):
    save_classifier(tmp_path, "MobileNetV2")
    before, cores = torch.get_num_threads(), usable_cores()
    runner = build(tmp_path, num_threads=len(cores), pin_threads=True)
    try:
        all_there = threading.Barrier(len(cores))

        def where(_: int) -> set[int]:
            all_there.wait(30)
            return os.sched_getaffinity(0)

        assert sorted(runner.threads.run(where, range(len(cores))), key=min) == [{core} for core in cores]
    finally:
        runner.close()
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["MobileNetV2", "ViT"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_images_are_made_and_computed_in_their_order(family, num_threads, build, tmp_path):
    save_classifier(tmp_path, family)
    before, made = torch.get_num_threads(), []
    runner = build(tmp_path, num_threads=num_threads)

    def make(number: int) -> RunnerItem:
        made.append(number)
        return RunnerItem(task="classify", pixels=picture(40 + number % 3, 50), is_resized=False)

    try:
        expected = [runner.run([make(number)])[0].tobytes() for number in range(3)]
        made.clear()
        results = list(runner.run_lazily(make, 150))
        assert [each.tobytes() for each in results] == [expected[number % 3] for number in range(150)]
        assert sorted(made) == list(range(150))
        assert list(runner.run_lazily(make, 0)) == []
    finally:
        runner.close()
        torch.set_num_threads(before)


RESNET = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 28},
    "crop_pct": 0.875,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@pytest.mark.parametrize(
    "settings", [RESNET, PROCESSOR, {**PROCESSOR, "size": 40, "do_center_crop": True, "crop_size": 32}]
)
def test_services_and_predictors_prepare_an_image_alike(settings, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processing, pixels = read_image_processing(tmp_path), picture(61, 90)
    decoder = ImageDecoder(processing.shape, num_processes=1)
    try:
        decoded = [decoder.submit(image).result(30) for image in (png(pixels), pixels)]
    finally:
        decoder.close()
    assert decoded[0].shape[:2] == processing.input_size
    for served in decoded:
        assert served.tobytes() == processing.resize(pixels).tobytes()


def test_a_file_its_bytes_and_its_pixels_are_one_image(tmp_path):
    save_classifier(tmp_path, "ViT")
    pixels = picture(40, 50)
    file = tmp_path / "picture.png"
    file.write_bytes(png(pixels))
    with Predictor(str(tmp_path)) as predictor:
        expected = predictor.classify([pixels])
        content, gray = file.read_bytes(), Image.fromarray(pixels).convert("L")
        for same in (file, str(file), content, bytearray(content), memoryview(content), Image.fromarray(pixels)):
            assert predictor.classify([same]) == expected
        assert predictor.classify(file) == expected[0]
        assert predictor.classify([Image.fromarray(pixels).convert("RGBA")]) == expected
        assert predictor.classify(gray) == predictor.classify(gray.convert("RGB"))
        with pytest.raises(BadImage, match="input 0: the image is no JPEG, PNG or WebP image"):
            predictor.classify([b"GIF89a"])
        with pytest.raises(InvalidParameter, match=r"the image '.* cannot be read: .*No such file"):
            predictor.classify([str(tmp_path / "none.png")])


def test_an_image_at_fault_is_named_by_its_number_in_the_list(tmp_path):
    save_classifier(tmp_path, "ViT")
    images = [picture(40, 50)] * 20 + [np.zeros((5, 5), np.uint8)] + [picture(40, 50)] * 3
    with Predictor(str(tmp_path), batch_size=1) as predictor, pytest.raises(InvalidParameter, match="input 20: "):
        predictor.classify(images)


def test_loading_draws_no_progress_bar(tmp_path, capfd):
    save_classifier(tmp_path, "ViT")
    capfd.readouterr()
    Predictor(str(tmp_path)).close()
    assert capfd.readouterr() == ("", "")


def test_classes_of_the_embedded_classifier_have_names_of_their_own():
    labels = LABELS.read_text().splitlines()
    assert (len(set(labels)), labels[285]) == (1000, "Egyptian cat")
