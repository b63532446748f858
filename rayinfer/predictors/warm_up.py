"""A request that passes through a whole predictor engine (no torch and numpy here)."""

import base64

from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

ONE_TOKEN = SamplingParams(max_tokens=1)

# One gray pixel.
PNG = base64.b64decode(b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==")


def predictor_warm_up(
    request_id: str, predictor: PredictorDescription, *, takes_text: bool
) -> GenerationRequest | None:
    """Make a request whose item passes through the whole engine; None for models of tensors of unknown shapes."""
    if not takes_text and not predictor.image_size:
        return None
    prediction = PredictionInput(task=predictor.tasks[0], image=b"" if takes_text else PNG)
    token_ids = [0] if takes_text else []
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=token_ids, sampling_params=ONE_TOKEN, prediction=prediction
    )
