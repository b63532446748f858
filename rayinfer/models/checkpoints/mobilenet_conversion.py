"""Conversion of torchvision's MobileNetV2 weights to a model folder of transformers."""

import io
import json
from pathlib import Path

import torch
from transformers.models.mobilenet_v2.configuration_mobilenet_v2 import MobileNetV2Config
from transformers.models.mobilenet_v2.modeling_mobilenet_v2 import MobileNetV2ForImageClassification

from rayinfer.errors import ModelLoadError

NUM_LABELS = 1000  # of ImageNet
PROCESSOR = {
    "image_processor_type": "MobileNetV2ImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 2,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def convert_mobilenet(weights: bytes, out: Path) -> None:
    """Write the folder; of the pickled weights only tensors are read. Raises ModelLoadError where they do not fit."""
    theirs = torch.load(io.BytesIO(weights), weights_only=True, map_location="cpu")
    settings = {"hidden_act": "relu6", "tf_padding": False, "layer_norm_eps": 1e-5, "classifier_dropout_prob": 0.2}
    with torch.device("meta"):
        model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=NUM_LABELS, **settings))
    names = list(model.state_dict())
    if len(names) != len(theirs):
        raise ModelLoadError(f"weights of MobileNetV2 must be {len(names)} tensors, got {len(theirs)}")
    # Both list their tensors in the order of the layers, under names of their own.
    try:
        model.load_state_dict(dict(zip(names, theirs.values(), strict=True)), assign=True)
    except RuntimeError as error:
        raise ModelLoadError(f"weights of MobileNetV2 do not fit: {' '.join(str(error).split())[:300]}") from None
    model.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
