"""Models that are optimized, and files of inputs for them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from rayinfer import register_predictor
from rayinfer.predictors.registered import unregister_predictor
from rayinfer.protocols import TensorSpec
from support.tiny_models.tiny_encoders import make_tiny_encoder, save_sentence_layout

SENTENCES = (
    "an old man saw the queen",
    "seven wizards make brew",
    "children by the sea house slowed",
    "the quick brown foxes jumps",
    "a",
    "the evil queen saw children",
    "old wizards by the house",
    "Anna Smith lives in Paris",
)


class Mixer(torch.nn.Module):
    """A module of named tensors, with rows of any number."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.up, self.down = torch.nn.Linear(6, 40), torch.nn.Linear(40, 3)

    def forward(self, x, scale):
        y = self.down(torch.nn.functional.gelu(self.up(x))) * scale
        return {"y": y, "total": y.sum(-1)}


@pytest.fixture(autouse=True)
def _own_cache(build):
    """Give each test a cache folder of its own, with the kernels that all tests share."""


@pytest.fixture
def classifier(tmp_path):
    """Save a classifier of texts."""
    folder = tmp_path / "classifier"
    make_tiny_encoder(folder, "Bert", "ForSequenceClassification", initializer_range=0.1)
    return folder


@pytest.fixture
def embedder(tmp_path):
    """Save a model of embeddings with a layer behind the pooling."""
    folder = tmp_path / "embedder"
    make_tiny_encoder(folder, "Bert", "Model")
    save_sentence_layout(folder, dense=24)
    return folder


@pytest.fixture
def image_classifier(tmp_path):
    """Save a MobileNetV2 of 32 pixels."""
    folder = tmp_path / "images"
    labels = dict(enumerate(("cat", "dog", "owl")))
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32, id2label=labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.MobileNetV2ForImageClassification(config).eval()
        with torch.no_grad():
            model.classifier.weight.mul_(20)
    model.save_pretrained(folder)
    processor = {"image_processor_type": "MobileNetV2ImageProcessor", "size": {"shortest_edge": 32},
                 "crop_size": {"height": 32, "width": 32}}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Save a folder of pictures."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(16):
        coarse = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40 + index, 36), Image.Resampling.BICUBIC).save(folder / f"{index:02}.png")
    return folder


@pytest.fixture
def texts(tmp_path) -> Path:
    """Save lines of texts with the classes that they are said to have."""
    file = tmp_path / "texts.jsonl"
    lines = [
        {"text": f"{one} {other}", "label": index % 3} for index, one in enumerate(SENTENCES) for other in SENTENCES
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def mixer(build):
    """Register a module."""
    inputs = [
        TensorSpec(name="x", datatype="FP32", shape=(-1, 6)),
        TensorSpec(name="scale", datatype="FP32", shape=(1,)),
    ]
    outputs = [
        TensorSpec(name="y", datatype="FP32", shape=(-1, 3)),
        TensorSpec(name="total", datatype="FP32", shape=(-1,)),
    ]
    register_predictor("mixer", Mixer, inputs=inputs, outputs=outputs)
    yield "mixer"
    unregister_predictor("mixer")


@pytest.fixture
def tensors(tmp_path) -> Path:
    """Save lines of tensors."""
    file = tmp_path / "tensors.jsonl"
    generator = np.random.default_rng(0)
    lines = [
        {"inputs": {"x": generator.normal(size=(2 + index % 4, 6)).tolist(), "scale": [1.0 + index]}}
        for index in range(20)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file
