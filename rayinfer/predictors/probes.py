"""Inputs that every predictor can compute: for measurements, for warm-up, and to check that the model works."""

import base64

import numpy as np

from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.predictors.runner import Runner, RunnerItem
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

ONE_TOKEN = SamplingParams(max_tokens=1)

# One gray pixel.
PNG = base64.b64decode(b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==")


def probe_item(runner: Runner, num_tokens: int) -> RunnerItem | None:
    """Make an item of so many tokens at most, or a gray image; None for models of tensors of unknown shapes."""
    description, task = runner.description, runner.description.tasks[0]
    if runner.max_input_tokens:
        return RunnerItem(task=task, token_ids=[0] * min(num_tokens, runner.max_input_tokens))
    if description.image_size:
        size = description.image_size
        return RunnerItem(task=task, pixels=np.full((size, size, 3), 128, np.uint8))
    return None


def warm_up_request(request_id: str, predictor: PredictorDescription, *, takes_text: bool) -> GenerationRequest | None:
    """Make a request whose item passes through the whole engine; None as with `probe_item`."""
    if not takes_text and not predictor.image_size:
        return None
    prediction = PredictionInput(task=predictor.tasks[0], image=b"" if takes_text else PNG)
    token_ids = [0] if takes_text else []
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=token_ids, sampling_params=ONE_TOKEN, prediction=prediction
    )
