"""Conversion of a folder of MiniLM to a classifier of sentiment, with what `sentiment_training.py` has learned."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rayinfer.errors import ModelLoadError

TRAINED = Path(__file__).with_name("sentiment_tiny.safetensors")
WEIGHTS = "model.safetensors"
PREFIX = "bert."  # of the encoder's tensors, where there is a head
LABELS = ("negative", "positive")
MAX_TOKENS = 256  # more of a review was not judged
KEPT = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", WEIGHTS)


def convert_sentiment(folder: Path, trained: Path = TRAINED) -> None:
    """Replace the tensors that were trained and add the head; raises ModelLoadError where they do not fit."""
    tensors = {PREFIX + name.removeprefix(PREFIX): value for name, value in load_file(folder / WEIGHTS).items()}
    for name, value in load_file(trained).items():
        known = tensors.get(name)
        if (known is None) != name.startswith("classifier.") or (known is not None and known.shape != value.shape):
            raise ModelLoadError(f"{folder}: tensor {name!r} is not MiniLM's, so what was trained does not fit")
        tensors[name] = value.to(torch.float32)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    for path in folder.iterdir():  # how sentences are embedded is no affair of a classifier
        if path.is_dir() and path.name != "download":
            shutil.rmtree(path)
        elif path.is_file() and path.name not in KEPT:
            path.unlink()
    labels = dict(enumerate(LABELS))
    changes: dict[str, object] = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": labels,
        "label2id": {label: number for number, label in labels.items()},
    }
    _change(folder / "config.json", changes)
    _change(folder / "tokenizer_config.json", {"model_max_length": MAX_TOKENS})


def _change(file: Path, changes: dict[str, object]) -> None:
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(settings | changes, indent=2), encoding="utf-8")
