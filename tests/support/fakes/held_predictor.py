"""A predictor's TextGenerator whose answers wait until the test lets them go."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.prediction_outputs import prediction_output
from rayinfer.predictions import PredictionInput, PredictionOutput, PredictorDescription
from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.sampling_params import SamplingParams


def item(name: str, token_ids=(1, 2, 3), *, task="embed", image=b"", tensors=b"", num_first_tokens=0, **fields):
    """A request of one item."""
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=list(token_ids),
        sampling_params=SamplingParams(max_tokens=1),
        prediction=PredictionInput(task=task, image=image, tensors=tensors, num_first_tokens=num_first_tokens),
        **fields,
    )


class HeldPredictor:
    """Generator that answers with the number of its computation; `is_open` set, it answers at once."""

    def __init__(self) -> None:
        self.digest = "weights"
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.started: list[str] = []
        self.aborted: list[str] = []
        self.error = ""  # of an item, which its output has
        self.failure: Exception | None = None
        self.refusal: Exception | None = None  # raised at once

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Answer an item."""
        if self.refusal is not None:
            raise self.refusal
        return self._answer(request)

    async def _answer(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        self.started.append(request.request_id)
        number = len(self.started)
        try:
            await self.is_open.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request.request_id)
            raise
        if self.failure is not None:
            raise self.failure
        prediction = prediction_output(np.asarray([number, len(request.prompt_token_ids)], np.float32))
        if self.error:
            prediction = PredictionOutput(error=self.error)
        reason = "error" if self.error else "stop"
        yield RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[CompletionOutput(index=0, text="", token_ids=[], finish_reason=reason)],
            finished=True,
            prediction=prediction,
        )

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        return False

    def describe(self) -> ModelDescription:
        """Describe a predictor of embeddings of two numbers."""
        predictor = PredictorDescription(tasks=("embed", "infer"), embedding_size=2, digest=self.digest)
        return ModelDescription(name="tiny", max_model_len=100, vocab_size=384, created=0, predictor=predictor)

    def status(self) -> ServiceStatus:
        """Return that it is ready."""
        return ServiceStatus(ready=True)

    def overload(self) -> None:
        """Admit everything."""
