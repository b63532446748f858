"""Keys of predictions: a digest of everything that their numbers depend on."""

import hashlib
from collections.abc import Iterator
from typing import NewType

import numpy as np
import safetensors

from rayinfer.protocols import GenerationRequest, ModelDescription

VERSION = "1"  # of keys and payloads

CacheKey = NewType("CacheKey", bytes)


def cache_key(request: GenerationRequest, description: ModelDescription) -> CacheKey | None:
    """Return the key of a request's prediction; None for one without an identity.

    Each part has its length before it, so that no two lists of parts give the same bytes.
    """
    predictor, prediction = description.predictor, request.prediction
    if predictor is None or prediction is None or not predictor.digest:
        return None
    texts = [
        *(VERSION, description.name, predictor.digest, str(description.weights_version), request.adapter or ""),
        *(prediction.task, request.tenant, request.cache_salt, str(prediction.num_first_tokens)),
    ]
    digest = hashlib.sha256()
    try:
        parts = [np.asarray(request.prompt_token_ids, "<i8").tobytes(), prediction.image]
        parts += _tensor_parts(prediction.tensors) if prediction.tensors else ()
    except (safetensors.SafetensorError, OverflowError, ValueError):
        return None  # the engine names what is wrong with it
    for part in (*(text.encode(errors="surrogatepass") for text in texts), *parts):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return CacheKey(digest.digest())


def _tensor_parts(content: bytes) -> Iterator[bytes]:
    """Yield name, dtype, shape and bytes of each tensor, in the order of their names."""
    for name, tensor in sorted(safetensors.deserialize(content)):  # type: ignore[no-untyped-call]
        yield name.encode()
        yield str(tensor["dtype"]).encode()
        yield repr(list(tensor["shape"])).encode()
        yield bytes(tensor["data"])
