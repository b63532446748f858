"""Runner without a model: an item's numbers follow from its tokens, and a clock or a sleep takes its time."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rayinfer.config import engine_config
from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.predictors.build_engine import assemble_engine
from rayinfer.predictors.predictor_engine import PredictorEngine
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

VOCAB_SIZE = 256
GUILTY, NAN, OUT_OF_MEMORY = 250, 251, 252  # tokens of items that fail


class FakeRunner:
    """A step takes `base_s` and `each_s` for every item; what it computes of an item is `expected_numbers`."""

    def __init__(
        self,
        *,
        base_s: float = 0.0,
        each_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        image_size: int = 0,
    ) -> None:
        self.description = PredictorDescription(
            tasks=("embed", "infer") if not image_size else ("classify",), embedding_size=2, image_size=image_size
        )
        self.max_input_tokens = 0 if image_size else 100
        self.vocab_size = 0 if image_size else VOCAB_SIZE
        self.batches: list[int] = []  # their numbers of items
        self.is_broken = False
        self.is_closed = False
        self._base_s, self._each_s, self._sleep = base_s, each_s, sleep

    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        assert not self.is_closed
        self.batches.append(len(batch))
        self._sleep(self._base_s + self._each_s * len(batch))
        tokens = {token for item in batch for token in item.token_ids}
        if OUT_OF_MEMORY in tokens:
            raise MemoryError
        if self.is_broken or GUILTY in tokens:
            raise RuntimeError("a token that the model cannot bear")
        return [_compute(item) for item in batch]

    def close(self) -> None:
        self.is_closed = True


def _compute(item: RunnerItem) -> RunnerResult:
    if item.tensors:
        return {name: 2 * values for name, values in item.tensors.items()}
    if item.pixels is not None:
        return item.pixels.mean(axis=(0, 1)).astype(np.float32)
    return expected_numbers(item.token_ids)


def expected_numbers(token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return what the runner computes of a text."""
    last = np.nan if NAN in token_ids else len(token_ids)
    return np.array([sum(token_ids), last], np.float32)


def item_request(request_id: str, token_ids: Sequence[int] = (1, 2), **fields: Any) -> GenerationRequest:
    """A request of a predictor; `task`, `image` and `tensors` are its input's."""
    names = ("task", "image", "tensors", "num_first_tokens")
    given = {name: fields.pop(name) for name in names if name in fields}
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids),
        sampling_params=SamplingParams(max_tokens=1),
        prediction=PredictionInput(**{"task": "embed"} | given),
        **fields,
    )


def predictor_engine(
    runner: FakeRunner, images: Any = None, clock: Any = time.monotonic, **settings: Any
) -> PredictorEngine:
    """A predictor engine around a fake runner."""
    config = engine_config(model="fake", **settings)
    return assemble_engine(config, runner, lambda: _reopened(runner), images, clock=clock)


def _reopened(runner: FakeRunner) -> FakeRunner:
    runner.is_closed = False
    return runner
