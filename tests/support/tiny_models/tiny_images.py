"""Tiny random image classifiers, and pictures for them."""

import io
import json

import numpy as np
import torch
import transformers
from PIL import Image

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


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def save_classifier(folder, family):
    config = getattr(transformers, f"{family}Config")(**CLASSIFIERS[family], id2label={0: "cat", 1: "dog", 2: "owl"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model
