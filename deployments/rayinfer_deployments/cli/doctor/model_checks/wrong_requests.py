"""Requests to a served model over HTTP: one that is right, and the edge cases of its kind."""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayinfer.predictors.warm_up import PNG
from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel
from rayinfer_deployments.cli.doctor.model_checks.sample_requests import sample_tensors

NAME = "model"  # of the model in requests
JSON = {"content-type": "application/json"}
IMAGE = {"content-type": "image/png"}
BOMB_SIDE = 60_000  # pixels
EMPTY_TENSOR = "a tensor without numbers"
MAY_BE_ANSWERED = (EMPTY_TENSOR,)
# By task: the path, and the field of the text.
TEXT_PATHS = {
    "embed": ("/v1/embeddings", "input"),
    "classify": ("/classify", "input"),
    "token_classify": ("/pooling", "input"),
    "score": ("/v1/score", "text_2"),
    "generate": ("/v1/completions", "prompt"),
}
TEXT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "token_classify": {"task": "token_classify"},
    "score": {"text_1": "a query"},
    "generate": {"max_tokens": 4, "temperature": 0},
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to the application."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def right_request(model: CheckedModel) -> HttpRequest:
    """Make a request that the model can compute."""
    if model.registered is not None:
        return _infer(_tensors(model))
    if model.samples.takes_images:
        return HttpRequest("/v1/images/classify", PNG, IMAGE)
    return _text(model, model.samples.text())


def wrong_requests(model: CheckedModel) -> dict[str, HttpRequest]:
    """Make requests that must be refused, by what is wrong with them."""
    if model.registered is not None:
        return _wrong_tensors(model)
    if model.samples.takes_images:
        return _wrong_images()
    most = model.engine.description.max_model_len
    return {
        "no text": _text(model, None),
        "an empty list": _text(model, []),
        "a number for a text": _text(model, 7),
        "a text that is too long": _text(model, "word " * (2 * most + 10)),
        "a token that the model lacks": _text(model, [model.engine.description.vocab_size + 1]),
        "a body that is no JSON": HttpRequest(_path(model)[0], b"{"),
        "NaN for a number": HttpRequest(_path(model)[0], b'{"model": "model", "input": [NaN], "prompt": [NaN]}'),
    }


def _path(model: CheckedModel) -> tuple[str, str]:
    predictor = model.engine.description.predictor
    return TEXT_PATHS["generate" if predictor is None else predictor.tasks[0]]


def _text(model: CheckedModel, value: Any) -> HttpRequest:
    predictor = model.engine.description.predictor
    path, name = _path(model)
    settings = TEXT_SETTINGS.get("generate" if predictor is None else predictor.tasks[0], {})
    return HttpRequest(path, json.dumps({"model": NAME, name: value, **settings}).encode())


def _wrong_images() -> dict[str, HttpRequest]:
    contents = {
        "no image": b"",
        "bytes that are no image": b"GIF, or so it says",
        "an image that breaks off": PNG[: 2 * len(PNG) // 3],
        "an image of 3.6 billion pixels": _bomb(),
    }
    requests = {name: HttpRequest("/v1/images/classify", content, IMAGE) for name, content in contents.items()}
    wrong_type = HttpRequest("/v1/images/classify", PNG, {"content-type": "text/plain"})
    return requests | {"an image of another type": wrong_type}


def _bomb() -> bytes:
    """Make a small PNG that says it is far too large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", BOMB_SIDE, BOMB_SIDE, 8, 0, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def _tensors(model: CheckedModel) -> list[dict[str, Any]]:
    assert model.registered is not None
    samples = sample_tensors(model.registered.inputs, 0)
    return [
        {"name": spec.name, "shape": list(array.shape), "datatype": spec.datatype, "data": array.ravel().tolist()}
        for spec, array in zip(model.registered.inputs, samples.values(), strict=True)
    ]


def _infer(tensors: list[dict[str, Any]]) -> HttpRequest:
    return HttpRequest(f"/v2/models/{NAME}/infer", json.dumps({"inputs": tensors}).encode())


def _wrong_tensors(model: CheckedModel) -> dict[str, HttpRequest]:
    first, *others = _tensors(model)
    other_type = "INT64" if first["datatype"] != "INT64" else "FP32"
    flat = np.ravel(first["data"]).astype(int).tolist()
    requests = {
        "no tensor": _infer([]),
        "a tensor of another name": _infer([{**first, "name": "no-such-input"}, *others]),
        "a wrong data type": _infer([{**first, "datatype": other_type, "data": flat}, *others]),
        "a wrong shape": _infer([{**first, "shape": [len(flat), *[1] * 5], "data": first["data"]}, *others]),
        "fewer numbers than the shape has": _infer([{**first, "data": first["data"][:-1]}, *others]),
    }
    if first["datatype"].startswith("FP"):
        requests["NaN"] = _infer([{**first, "data": [float("nan")] * len(flat)}, *others])
    free = [place for place, size in enumerate(model.registered.inputs[0].shape or ()) if size < 0]  # type: ignore[union-attr]
    if free:
        shape = [0 if place in free else size for place, size in enumerate(first["shape"])]
        requests[EMPTY_TENSOR] = _infer([{**first, "shape": shape, "data": []}, *others])
    return requests
