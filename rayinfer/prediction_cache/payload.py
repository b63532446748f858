"""Predictions as bytes that other processes can check: a digest or signature, then a safetensors file."""

import hashlib
import hmac
import json
import math
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy

from rayinfer.prediction_cache.cache_key import VERSION, CacheKey
from rayinfer.prediction_cache.memory_cache import CachedPrediction
from rayinfer.predictions import PredictionOutput, PredictionTask, PredictorDescription

MAGIC = b"RPC" + VERSION.encode()
MAX_PAYLOAD_BYTES = 4 * 2**20
_DIGEST_BYTES = hashlib.sha256().digest_size
_FILE = "safetensors"  # the tensor of "infer": a file within the file


class InvalidPayload(ValueError):
    """Bytes that are no prediction of this model, or that another program has written."""


def encode_payload(key: CacheKey, prediction: CachedPrediction, secret: bytes) -> bytes:
    """Write a prediction; with a secret it is signed, with its key."""
    output = prediction.output
    metadata = {"schema": VERSION, "computed_s": f"{prediction.computed_s:.6f}"}
    if output.shape:
        tensors = {"output": np.frombuffer(output.data, "<f4").reshape(output.shape)}
    else:
        tensors = {_FILE: np.frombuffer(output.data, np.uint8)}
    body: bytes = safetensors.numpy.save(tensors, metadata)
    return MAGIC + _sign(key, body, secret) + body


def decode_payload(
    key: CacheKey, payload: bytes, secret: bytes, task: PredictionTask, predictor: PredictorDescription
) -> CachedPrediction:
    """Read a prediction that such a predictor can have made; raises InvalidPayload."""
    start = len(MAGIC) + _DIGEST_BYTES
    if len(payload) > MAX_PAYLOAD_BYTES or not payload.startswith(MAGIC):
        raise InvalidPayload("no payload of this version")
    body = payload[start:]
    if not hmac.compare_digest(payload[len(MAGIC) : start], _sign(key, body, secret)):
        raise InvalidPayload("its digest is another")
    try:
        ((name, tensor),) = safetensors.deserialize(body)  # type: ignore[no-untyped-call]
        computed_s = float(_metadata(body)["computed_s"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
        raise InvalidPayload("no safetensors file of this schema") from None
    data, shape = bytes(tensor["data"]), tuple(tensor["shape"])
    _check_tensor(name, str(tensor["dtype"]), shape, data, task, predictor)
    output = PredictionOutput(data=data) if task == "infer" else PredictionOutput(shape=shape, data=data)
    return CachedPrediction(output, computed_s if math.isfinite(computed_s) and computed_s > 0 else 0.0)


def _check_tensor(
    name: str, dtype: str, shape: tuple[int, ...], data: bytes, task: PredictionTask, predictor: PredictorDescription
) -> None:
    if task == "infer":
        if (name, dtype) != (_FILE, "U8"):
            raise InvalidPayload("not of this task")
        return
    if (name, dtype) != ("output", "F32"):
        raise InvalidPayload(f"the tensor {name} of {dtype} is none of this task")
    sizes = {"score": 1, "embed": predictor.embedding_size, "token_embed": predictor.embedding_size}
    size = sizes.get(task, len(predictor.labels))
    num_dimensions = 2 if task.startswith("token_") else 1
    if len(shape) != num_dimensions or (size and shape[-1] != size):
        raise InvalidPayload(f"the shape {shape} is none of this task")
    if not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise InvalidPayload("a number is not finite")


def _metadata(body: bytes) -> Mapping[str, str]:
    """Return the metadata of a safetensors file whose header has been checked."""
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    metadata: Mapping[str, str] = header["__metadata__"]
    return metadata


def _sign(key: CacheKey, body: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, key + body, "sha256") if secret else hashlib.sha256(key + body).digest()
