"""Requests that a model can compute: short, long and as long as it allows."""

import re
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from rayinfer.predictions import PredictionInput
from rayinfer.predictors.registered import DATATYPES, RegisteredPredictor
from rayinfer.predictors.warm_up import PNG
from rayinfer.protocols import GenerationRequest, ModelDescription, TensorSpec
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer

NUM_NEW_TOKENS = 8  # that a model which generates makes
FREE_SIZE = 2  # of a dimension of any size
SHORT, LONG = 16, 128  # tokens


class SampleRequests:
    """Makes requests of real English, of one gray image, or of random tensors; equal numbers make equal requests."""

    def __init__(
        self, description: ModelDescription, folder: Path | None, registered: RegisteredPredictor | None
    ) -> None:
        predictor = description.predictor
        self._description, self._predictor, self._registered = description, predictor, registered
        self.takes_images = predictor is not None and predictor.image_size > 0
        self.takes_text = registered is None and not self.takes_images
        self.tokenizer = Tokenizer.from_folder(folder) if folder is not None and self.takes_text else None

    def short(self, number: int = 0) -> GenerationRequest:
        """Make a request of some words, or of whatever is all that the model takes."""
        return self.of_tokens(SHORT, number)

    def long(self, number: int = 0) -> GenerationRequest:
        """Make a request of a paragraph."""
        return self.of_tokens(LONG, number)

    def longest(self, number: int = 0) -> GenerationRequest:
        """Make the longest request that is allowed, of a model that generates one whose prompt fills a step."""
        description = self._description
        is_cut = self._predictor is None and description.max_num_batched_tokens
        return self.of_tokens(description.max_num_batched_tokens if is_cut else description.max_model_len, number)

    def of_tokens(self, num_tokens: int, number: int = 0) -> GenerationRequest:
        """Make a request of so many tokens, as many as there may be; images and tensors have one size."""
        if self._registered is not None:
            return self.of_tensors(sample_tensors(self._registered.inputs, number))
        if self.takes_images:
            return self._predict([], image=PNG)
        token_ids = self._token_ids(self._most_tokens(num_tokens), number)
        if self._predictor is not None:
            return self._predict(token_ids)
        params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
        return GenerationRequest(request_id="", prompt_token_ids=token_ids, sampling_params=params)

    def of_tensors(self, tensors: dict[str, np.ndarray[Any, Any]]) -> GenerationRequest:
        """Make a request of these tensors."""
        return self._predict([], tensors=safetensors.numpy.save(tensors))

    def text(self, number: int = 0) -> str:
        """Return a sentence of about twenty words."""
        words = _words()
        start = 20 * number % (len(words) - 20)
        return " ".join(words[start : start + 20])

    def _most_tokens(self, num_tokens: int) -> int:
        room = self._description.max_model_len - (0 if self._predictor is not None else NUM_NEW_TOKENS)
        return max(1, min(num_tokens, room))

    def _token_ids(self, num_tokens: int, number: int) -> list[int]:
        assert self.tokenizer is not None
        words = _words()
        start = 97 * number % (len(words) // 2)
        token_ids: list[int] = []
        while len(token_ids) < num_tokens:
            token_ids += self.tokenizer.encode(" ".join(words[start : start + num_tokens]))
        return token_ids[: num_tokens - 1] + token_ids[-1:]  # the last one closes a text

    def _predict(self, token_ids: Sequence[int], **parts: Any) -> GenerationRequest:
        assert self._predictor is not None
        prediction = PredictionInput(task=self._predictor.tasks[0], **parts)
        return GenerationRequest(
            request_id="",
            prompt_token_ids=list(token_ids),
            sampling_params=SamplingParams(max_tokens=1),
            prediction=prediction,
        )


def sample_tensors(specs: Sequence[TensorSpec], number: int) -> dict[str, np.ndarray[Any, Any]]:
    """Make random tensors of a schema: normal numbers, or zeros and ones where only whole numbers may stand."""
    draw = np.random.default_rng(number)
    tensors = {}
    for spec in specs:
        shape = [FREE_SIZE if size < 0 else size for size in spec.shape or (FREE_SIZE,)]
        dtype = torch.empty(0, dtype=DATATYPES[spec.datatype]).numpy().dtype
        numbers = draw.standard_normal(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
        tensors[spec.name] = numbers.astype(dtype)
    return tensors


def _words() -> list[str]:
    """Return the words of Python's own language reference, which every machine has."""
    texts = (topics[name] for name in ("assignment", "compound", "function"))
    return re.findall(r"[A-Za-z][A-Za-z,.]*", " ".join(texts))
